"""Count how many faults and wrong inputs are handled: `python -m tests.lab.reliability`."""
