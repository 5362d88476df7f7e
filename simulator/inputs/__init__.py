"""Reading what users write: units, CSV columns, sandboxed paths, and the wording of refusals.

Import from any file here. Whatever reads a file from outside reads it through `untrusted` (bounds
on size and depth), shows text from it, and refuses, through `messages`. Nothing here
knows what a scenario is.
"""
