"""Fit a profile with standard errors to measured runs: `calibrate.calibrate`.

`compute_laws` and `overheads` fit their part.
"""
