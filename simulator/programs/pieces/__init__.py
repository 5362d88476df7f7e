"""Small parts that programs are composed of: schedules, transforms, graphs.

Import each from its file; `piece` defines how a scenario's table becomes one. A piece never awaits,
reads no clock and draws no random numbers, so that it is the same in every engine.
"""
