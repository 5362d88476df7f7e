"""Reading what users write: units, CSV columns, sandboxed paths, and the wording of refusals.

Import from any file here. Readers of outside files use `untrusted` (bounds on size and depth), and
`messages` to show their text and to word refusals. Nothing here depends on scenarios.
"""
