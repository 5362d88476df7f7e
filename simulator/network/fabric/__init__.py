"""Simulate transfers that share lines max-min fairly, as flows, in compiled loops.

Import `fabric.Fabric`, and `messages` to list a collective's messages. Inputs and outputs are plain
numbers: the fabric imports no other file of Paceline, so it can be compared with SimGrid.
"""
