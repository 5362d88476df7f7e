"""Matplotlib figures of a run: curves, bars, and their common style.

Import `curves.figures` for the files of a run directory, `style` for colours and formats.
Matplotlib is imported inside functions: it takes half a second.
"""
