"""Training drafts: data that the target writes itself, the loop, checkpoints, the model card."""
