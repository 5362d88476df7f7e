"""The four papers, claim by claim: `paceline reproduce`.

Import `reproduce.reproduce`, which says how the claims of each are written.
"""
