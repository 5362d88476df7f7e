"""Read user input: units, CSV columns and sandboxed paths; write error messages.

Import from any file here. Readers of outside files use `untrusted` (bounds on size and depth), and
`messages` to quote such files and to explain errors. Nothing here depends on scenarios.
"""
