"""Terminal interface and command line; knows widgets and words, not arrays."""
