"""Drafters: the sources of draft tokens. Import them from their own modules."""
