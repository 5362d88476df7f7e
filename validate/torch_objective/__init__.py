"""Compute real gradients of PyTorch models, for simulations and real runs.

The samples of a gradient depend only on (seed, worker, step), so that engines and real runs agree.
"""
