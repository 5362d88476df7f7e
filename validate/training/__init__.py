"""Run a program's effects on torch.distributed, as one process of a real run.

Import `task` for one algorithm with one seed, `events` for the record of the nodes' effects. Means
start in `collectives`, and `transport` sums the vectors; `emulated_network` adds the delays.
"""
