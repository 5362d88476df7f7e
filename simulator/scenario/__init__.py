"""The tables of scenario.toml as frozen models in SI units; nothing here simulates.

Import `scenario` for the whole (`Scenario`, `Algorithm`), `tables`, `cluster` and `network` for its
tables, `bootstrap` for the same scenario with calibrated numbers redrawn. A model checks its own
values; what contradicts another table is checked in `load.checks`. Files are read in `load`.
"""
