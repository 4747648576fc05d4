"""Where the arithmetic of a model runs."""
