"""Read user input: units, CSV columns and sandboxed paths; and word refusals.

Import from any file here. Readers of outside files use `untrusted` (bounds on size and depth), and
`messages` to quote such files and to word refusals. Nothing here depends on scenarios.
"""
