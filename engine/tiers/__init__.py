"""Where weights live while a model runs: in memory, or in the file and read for every pass."""
