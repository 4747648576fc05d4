"""Speed and quality of a loaded model, measured: for `bench`, `perplexity` and `calibrate`, and for tests."""
