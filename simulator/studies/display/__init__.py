"""Results as people meet them: in a REPL, a notebook, a data frame, a file.

`display.py` has the one base class; what a result adds is its sentence, its rows and its figure.
Libraries beyond matplotlib load only where asked for.
"""
