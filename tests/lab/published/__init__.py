"""Predict what other people measured, from what their sources state."""
