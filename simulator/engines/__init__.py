"""Engines: what runs a program in simulated time, or in none.

Import `dispatch.run_seeds`, which picks the fastest engine that takes a run. The files here are
what engines share; `virtual` is the reference and takes everything, `batched` and `compiled` give
the same numbers sooner, `lockstep` has no time. Engines know programs only by their effects.
"""
