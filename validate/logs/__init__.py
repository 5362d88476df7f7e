"""Fit a profile, or a law of the loss, to the logs of any jobs.

Import `calibrate.calibrate` or `loss.fit`. `tables` reads a log, `jobs` the description of its job;
`steps` divides its time, and `link_law` fits one law of the links to all jobs.
"""
