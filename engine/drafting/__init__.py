"""Who proposes ids for the model to verify: all kinds, behind one protocol (`base`)."""
