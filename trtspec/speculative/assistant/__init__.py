"""Assistants: query-only networks that draft over their target's K/V."""
