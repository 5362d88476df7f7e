"""Faults and wrong inputs, and how many of them are handled: `python -m tests.lab.reliability`."""
