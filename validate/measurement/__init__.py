"""Convert files of processes, telemetry and profiler traces to runs and events.

Import `measure.measure`, `telemetry.Telemetry`, `evidence` to decide whether a run counts. This
folder reads files and starts nothing.
"""
