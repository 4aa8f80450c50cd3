"""PARD, P-EAGLE: a network guesses every depth in one pass, by mask rows."""
