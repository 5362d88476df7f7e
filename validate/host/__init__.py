"""Describe and use this machine: devices, namespaces, the relay of emulated links.

Nothing here depends on algorithms or tasks.
"""
