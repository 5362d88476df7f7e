"""Measure this machine in a minute, as a profile (`probe`); check it (`doctor`).

Small programs run phases in a known order.
"""
