"""One process of a real run: effects of a program on torch.distributed, by the wall clock.

Import `task` for one algorithm with one seed, `events` for the record of what nodes did. The
program is the simulator's own text; `emulated_network` adds what a real network lacks.
"""
