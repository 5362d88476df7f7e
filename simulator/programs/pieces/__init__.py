"""Provide the small parts of programs: schedules, transforms, graphs.

Import them from their files; `piece` turns a scenario's table into a part. A piece never awaits,
reads no clock and draws no random numbers, so it is the same in every engine.
"""
