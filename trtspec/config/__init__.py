"""Strict config objects. Import them from their own modules."""
