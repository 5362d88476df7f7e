"""`paceline calibrate jobs.toml`: from logs of anyone's jobs to a profile; `paceline fit-loss`.

Import `calibrate.calibrate`, and `loss.fit` for the losses in a log. `columns` and `tables` read a
log, `jobs` what is known of its job, `steps` divides its time into computing and communicating, and
`transport` fits one law of the links to all jobs. A log says nothing of what happened within a
step, so nothing here does.
"""
