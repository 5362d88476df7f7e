"""What the commands do: simulate, and on top of it sweep, tune and reproduce.

Import `simulate.simulate` and the main function of each folder. A study runs scenarios and keeps
results; it shows nothing itself.
"""
