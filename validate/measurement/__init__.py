"""Turn the files of processes, telemetry and profiler traces into runs and events.

Import `measure.measure`, `telemetry.Telemetry`, `evidence` for whether a run counts. It reads files
and starts nothing.
"""
