"""Engines, which run a program (an algorithm) in simulated time.

Import `dispatch.run_seeds`, which picks the fastest engine that can run a scenario. The files in
this folder are shared by both engines: `virtual` is the reference and runs everything, `batched`
gives the same numbers faster. Engines use programs only through their effects.
"""
