"""Everything predicted: clusters, networks, algorithms, and the engines that run them.

The rooms, each importing only those before it (tests/test_layers.py holds this):

    errors, inputs | distributions, programs | scenario | cluster | network | results, theory
    | objectives | load | engines | studies | reports

Commands enter by `load.load` and `studies`. Nothing here imports torch or `paceline.validate`, and
nothing prints: only the command line does.
"""
