"""This machine: its hardware and devices, network namespaces, and the relay of emulated links.

Import from any file. Nothing here depends on algorithms or tasks.
"""
