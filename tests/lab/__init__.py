"""Programs that measure, and are no tests: each folder is a command, `python -m tests.lab.NAME`."""
