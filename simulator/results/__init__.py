"""The record of a run, its statistics, the pick, and the run directory.

Import `run.Run`, `statistics` for means and intervals, `pick` for the choice, `store` to write a
run directory and `read` to open one. Nothing here runs a simulation.
"""
