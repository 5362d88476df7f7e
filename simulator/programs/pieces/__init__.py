"""Small parts that programs are composed of: schedules, transforms, gates, graphs.

Import each from its file; `piece` makes a table of a scenario into one. A piece never awaits, reads
no clock and draws no random numbers, so that it is the same in every engine.
"""
