"""Convert files of processes, telemetry and profiler traces to runs and events.

Import `measure.measure`, `telemetry.Telemetry`, or `evidence`, which decides if a run counts.
"""
