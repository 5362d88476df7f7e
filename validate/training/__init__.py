"""One process of a real run: effects of a program on torch.distributed, by the wall clock.

Import `task` for one algorithm with one seed, `events` for the record of the nodes' effects. The
program is the simulator's text; `emulated_network` adds the delays of the scenario's network.
"""
