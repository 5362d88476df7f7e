"""The engine without time: values, and the order of collectives and messages.

Import `run.run` in tests, and `replay` to repeat a measured run from what was recorded of it.
Nothing here knows a cluster or a network.
"""
