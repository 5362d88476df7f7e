"""Interpreters of programs in simulated time, or in none."""
