"""A copy of the target in fewer bits drafts."""
