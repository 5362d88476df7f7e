"""All seeds and workers at once, as NumPy arrays: the reference engine's numbers, sooner.

Import `run.run`. A program runs once for all workers (`node`); `clocks` works out its times from a
recorded `schedule`. Where workers do different things, `run` raises Unsupported, and the reference
engine takes the run.
"""
