"""Which rows a step feeds, and the books of every cache: planned, reserved, committed, freed."""
