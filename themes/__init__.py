"""Colour themes as TOML files; data only."""
