"""The screens, each with its structure (`.tcss`) beside it."""
