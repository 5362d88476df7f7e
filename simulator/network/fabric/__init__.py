"""Transfers that share lines max-min fairly, at the level of flows, in compiled loops.

Import `fabric.Fabric`, and `messages` for collectives as their real messages. Only plain numbers go
in and out: the fabric imports nothing else of Paceline, so that it can be held against SimGrid.
"""
