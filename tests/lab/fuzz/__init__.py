"""A coverage-guided fuzzer, and the readers of files that it tries."""
