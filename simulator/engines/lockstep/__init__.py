"""The engine without time: values, and the order of collectives and messages.

Import `run.run` in tests, and `replay` to replay a measured run from its log.
Nothing here knows a cluster or a network.
"""
