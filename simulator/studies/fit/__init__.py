"""`paceline fit`: find values of keys with which a scenario meets a file's numbers.

Import `fit.fit`. The file of keys and numbers is read by `targets`; `fit` reports which keys are
determined, and their intervals.
"""
