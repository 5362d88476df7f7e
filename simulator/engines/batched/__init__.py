"""Run all seeds and workers at once on NumPy arrays.

Results equal the reference engine's, but come faster. Import `run.run`. A program runs once for all
workers (`node`); `clocks` records its effects and computes their times. Where workers do different
things, `run` raises Unsupported, and the reference engine takes the run.
"""
