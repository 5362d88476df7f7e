"""Results as people meet them: in a REPL, a notebook, a data frame, a file, a tracker of runs.

`shown.py` has the one base class; what a result adds is its sentence, its rows and its figure.
Everything here works on these alone, and libraries beyond matplotlib load only where asked for.
"""
