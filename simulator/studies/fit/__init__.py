"""`paceline fit`: the values of keys with which a scenario meets the numbers of a file.

Import `fit.fit`. The file of keys and numbers is read by `targets`; `sensitivity` says what a fit
has determined, and within what.
"""
