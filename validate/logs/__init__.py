"""`paceline calibrate jobs.toml`: from logs of anyone's jobs to a profile; `paceline fit-loss`.

Import `calibrate.calibrate`, and `loss.fit` for the losses in a log. `tables` reads a log, `jobs`
what is known of its job, `steps` divides its time into computing and communicating, and `link_law`
fits one law of the links to all jobs. Nothing here knows what happened within a step.
"""
