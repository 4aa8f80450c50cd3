"""DFlash, DDTree: a network guesses a whole block in one pass over the target's states."""
