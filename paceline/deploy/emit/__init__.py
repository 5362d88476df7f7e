"""`paceline emit`: configuration and code that run a pick in another framework.

Import `emit.emit`, which imports neither torch nor a framework.
"""
