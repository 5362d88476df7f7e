"""The reference engine, on SimPy: any scenario, one seed at a time.

Import `run.run`. `node` and `simulation` are the heart, `request_reply` a shorter way for parameter
servers; crashes, shared links and background jobs build on them. Only this folder imports simpy.
"""
