"""Model scenario.toml as frozen values in SI units; nothing here simulates.

Import `scenario` for `Scenario` and `Algorithm`, `tables`, `cluster` and `network` for its tables,
`team` for the resolved workers (`Scenario.team`, computed once), `world` for an algorithm with its
scenario and program, `redraw` to redraw calibrated numbers. A model checks single values;
`load.checks` refuses contradictions between tables. `load` reads the files.
"""
