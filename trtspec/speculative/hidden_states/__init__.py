"""No drafts: the target's hidden states are written to files, to train drafts with."""
