"""The processes of a real run: started, watched, and ended whatever happens.

Import `launch.run`, and `launch.join` under a launcher such as torchrun. `worker` runs inside the
processes, `job` is what travels to them.
"""
