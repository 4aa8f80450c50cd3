"""Assistants: networks of queries alone that draft over the K/V of their target."""
