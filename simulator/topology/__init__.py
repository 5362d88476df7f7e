"""The network as a graph: places, links, network cards, and the ways between nodes."""
