"""Synthetic checkpoints: the text and acceptance of a small model at the cost of a large one."""
