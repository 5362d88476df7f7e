"""Measure this machine in a minute, as a profile (`probe`); check it (`doctor`)."""
