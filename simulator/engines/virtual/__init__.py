"""The reference engine, on SimPy: any scenario, one seed at a time.

Import `run.run`. A `simulation` of `node`s is composed with a `transport` (in closed form; `flows`
over shared lines), an `availability` with each node's `outages`, and a `recovery`.
Only this folder imports simpy.
"""
