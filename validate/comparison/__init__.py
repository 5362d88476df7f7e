"""`paceline compare`: predicted against measured, quantity by quantity, and what explains it.

Import `compare.compare`; `quantities` are the rows, `attribution` names what explains an error. It
reads two run directories and starts nothing.
"""
