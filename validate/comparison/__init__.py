"""Compare predicted and measured quantities, and name the causes of errors.

Import `compare.compare`; `quantities` makes the rows, `attribution` names the cause of an error. It
reads two run directories and starts nothing.
"""
