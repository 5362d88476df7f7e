"""Predict other people's measurements from the settings in their sources."""
