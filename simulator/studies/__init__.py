"""Studies: simulate, and on top of it sweep, tune and reproduce.

Import `simulate.simulate` and the main function of each folder. A study runs scenarios and stores
results, but shows nothing itself.
"""
