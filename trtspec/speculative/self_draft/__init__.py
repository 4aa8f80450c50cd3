"""A copy of the target, of fewer bits, drafts."""
