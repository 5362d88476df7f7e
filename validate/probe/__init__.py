"""`paceline probe`: measure compute and links of this machine in a minute, as a profile.

Import `probe.probe`. Its `programs` run phases in a known order, which `profile` separates.
"""
