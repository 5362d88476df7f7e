"""Transfers that share lines max-min fairly, at the level of flows, in compiled loops.

Import `fabric.Fabric`, and `messages` to write down a collective's messages. Only plain numbers go
in and out: the fabric imports no other file of Paceline, so that it can be compared with SimGrid.
"""
