"""`paceline sweep`: a scenario at many points of its keys, as one tidy table.

Import `sweep.sweep`; `points` are what is varied, `table` and `figure` what comes out.
"""
