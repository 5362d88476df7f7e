"""`objective.kind = "torch"`: PyTorch models, with real gradients in virtual time or for real.

Import `objective.TorchObjective`; `models` and `data` list the names. Which samples a gradient
sees depends on (seed, worker, step) alone, so that engines and real runs agree.
"""
