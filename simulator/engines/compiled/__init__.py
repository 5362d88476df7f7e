"""Parameter servers, of time alone or on a quadratic: two traces, and a loop compiled by numba.

Import `run.run`. `worker_trace` and `server_trace` record what a program does, `shared` holds the
state common to all seeds, `seed_run` the arrays of one seed; `loop` is the compiled part.
`registers` stand for the server's vectors.
"""
