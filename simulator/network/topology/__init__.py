"""The network as a graph: places, links, network cards, and the route of every transfer.

Import `graph.Topology`; the other files are its parts. Nothing here depends on simulated time.
"""
