"""Blocks left out of passes: what a person asks for, what it would change, measured once and kept."""
