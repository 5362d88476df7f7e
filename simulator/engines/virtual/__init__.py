"""The reference engine, on SimPy: any scenario, one seed at a time.

Import `run.run`. `node` and `simulation` are the core, `request_reply` a fast path for parameter
servers; crashes, shared links and background jobs build on them. Only this folder imports simpy.
"""
