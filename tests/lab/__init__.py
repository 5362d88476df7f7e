"""Programs that measure instead of test; every folder is `python -m tests.lab.NAME`."""
