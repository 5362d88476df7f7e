"""The processes of a real run: started, watched, and ended whatever happens.

Import `launch.run`, and `launch.join` under a launcher such as torchrun. `fork` and `worker` run
inside the processes, `job` is what travels to them, `hangs` finds those that no longer answer.
"""
