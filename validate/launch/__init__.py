"""Start, watch, and always end the processes of a real run.

Import `launch.run`, and `launch.join` under a launcher such as torchrun. `worker` runs inside the
processes, `job` is the file sent to them.
"""
