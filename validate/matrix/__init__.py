"""`paceline validate --matrix`: predict many algorithms and conditions from two runs.

Import `matrix.matrix`. It uses all other folders here, and none uses it.
"""
