"""Drafts are trained here: data that the target writes itself, the loop, checkpoints, the card."""
