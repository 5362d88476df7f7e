"""`paceline calibrate jobs.toml`: fit a profile to logs of any jobs; `paceline fit-loss`.

Import `calibrate.calibrate`, and `loss.fit` for the losses in a log. `tables` reads a log, and
`jobs` the description of its job. `steps` divides its time into computing and communicating, and
`link_law` fits one law of the links to all jobs. Events within a step are unknown here.
"""
