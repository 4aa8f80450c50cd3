"""DFlash, DDTree and others: a network guesses a whole block in one pass over the target's hidden
states."""
