"""`paceline tune`: which algorithm and which parameters, and how sure that is.

Import `tune.tune`. A search over a space (`space`), raced with more and more
seeds (`race`, `runner`), ends in a verdict and in what it costs to be wrong (`verdict`,
`regret`).
"""
