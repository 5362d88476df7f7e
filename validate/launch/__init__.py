"""Start, watch, and always end the processes of a real run.

Import `launch.run`, or `launch.join` under a launcher such as torchrun.
"""
