"""The parts of the screens. Widgets show data and post messages; none of them knows the engine's thread."""
