"""From what processes left to runs and events; a user's own telemetry and profiler traces, too.

Import `measure.measure`, `telemetry.Telemetry`, `evidence` for whether a run counts. It reads files
and starts nothing.
"""
