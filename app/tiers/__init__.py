"""Where the weights are, made ready for people: from the engine's snapshots, drawn by others. No widget."""
