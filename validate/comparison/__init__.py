"""Compare predictions with measurements: `compare.compare`, which starts nothing.

`quantities` makes the rows.
"""
