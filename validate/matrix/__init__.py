"""Predict many algorithms and conditions from two runs: `matrix.matrix`.

It uses all other folders here, and none uses it.
"""
