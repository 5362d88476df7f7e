"""Model the network as a graph: places, links, cards, and routes of transfers.

Import `graph.Topology`; the other files are its parts. Nothing here depends on simulated time.
"""
