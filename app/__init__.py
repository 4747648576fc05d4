"""Terminal interface and command line; knows widgets and words, not arrays."""

import os

# Textual draws what has changed at its next tick, 60 a second unless it is told otherwise before its import.
# A letter that just misses one is 17 ms late then, which is noticed where the screen is busy.
os.environ.setdefault("TEXTUAL_FPS", "120")
