"""`objective.kind = "torch"`: PyTorch models with real gradients, in simulation and in real runs.

Import `objective.TorchObjective`; `models` and `data` list the names. The samples of a gradient
depend only on (seed, worker, step), so that engines and real runs agree.
"""
