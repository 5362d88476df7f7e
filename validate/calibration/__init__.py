"""`paceline calibrate`: fit a profile with standard errors to measured runs.

Import `calibrate.calibrate`, and `profile` to write one. `sources` opens runs, telemetry and
traces; `compute_laws` and `overheads` fit their part. Nothing is started or measured
here.
"""
