"""What travels through a step (plan, drafts, result), and how rows are sampled and verified."""
