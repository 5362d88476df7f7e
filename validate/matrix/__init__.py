"""`paceline validate --matrix`: many algorithms under many conditions, predicted from two runs.

Import `matrix.matrix`. It builds on every other room here, and nothing builds on it.
"""
