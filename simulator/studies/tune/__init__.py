"""`paceline tune`: which algorithm and which parameters, and how sure that is.

Import `tune.tune`. Configurations of a `space` race with more and more seeds (`race`).
The `result` has a verdict.
"""
