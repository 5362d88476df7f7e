"""Compute times of workers, and outages of nodes.

Import `workers` for compute times by worker, `speed` for time-varying speeds and bursts, `failures`
for the outages of each node. Results depend only on the scenario and keyed random streams; nothing
here depends on an engine.
"""
