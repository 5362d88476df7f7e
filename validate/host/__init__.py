"""This machine: its hardware and devices, network namespaces, and the relay of emulated links.

Import from any file. Nothing here knows an algorithm or a task.
"""
