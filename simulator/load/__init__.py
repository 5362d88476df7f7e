"""From a TOML file and `--set` to a checked `Scenario`, or to one InputError.

Import `load.load` (a file) and `load.parse` (a table), `listing` for what may be named, `extends`
for profiles. Only this room reads scenario files; nothing here simulates.
"""
