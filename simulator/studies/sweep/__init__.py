"""`paceline sweep`: a scenario at many points of its keys, as one table.

Import `sweep.sweep`; `points` parses the varied keys, `table` and `figure` present the results.
"""
