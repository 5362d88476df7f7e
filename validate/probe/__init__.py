"""`paceline probe`: measure compute and links of this machine in a minute, as a profile.

Import `probe.probe`. Its `programs` are real runs of known order; `read` takes them apart.
"""
