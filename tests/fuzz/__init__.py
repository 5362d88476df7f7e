"""Inputs nobody would think of: what reads them, and a fuzzer that makes them up."""
