"""Fit a profile with standard errors to measured runs: `calibrate.calibrate`.

`sources` opens runs; `compute_laws` and `overheads` fit their part.
"""
