"""PARD, P-EAGLE: a network guesses every depth in one pass, using mask rows."""
