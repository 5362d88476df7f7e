"""`paceline sweep`: run a scenario at many points of its keys, and make one table.

Import `sweep.sweep`; `table` presents the results.
"""
