"""Runs, their statistics, the verdict on them, and run directories.

Import `run.Run`, `statistics` for means and intervals, `verdict` for the choice, `store` to write a
run directory and `read` to open one. Nothing here runs a simulation.
"""
