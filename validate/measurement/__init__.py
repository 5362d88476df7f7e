"""Convert the files of a run's processes to curves and events.

Import `measure.measure`, or `evidence`, which decides if a run counts.
"""
