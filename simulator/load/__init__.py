"""Turn a TOML file and overrides into a checked `Scenario`, or raise InputError.

Import `load.load` (a file) and `load.parse` (a table), `listing` for known names, `extends`
for profiles. Only this room reads scenario files; nothing here simulates.
"""
