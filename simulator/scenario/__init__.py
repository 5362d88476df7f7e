"""The tables of scenario.toml as frozen models in SI units; nothing here simulates.

Import `scenario` for the whole (`Scenario`, `Algorithm`), `tables`, `cluster` and `network` for its
tables, `team` for what its workers are (`Scenario.team`, worked out once), `world` for an algorithm
with its scenario and program, `redraw` for calibrated numbers redrawn. A model checks its own
values; what contradicts another table is checked in `load.checks`. Files are read in `load`.
"""
