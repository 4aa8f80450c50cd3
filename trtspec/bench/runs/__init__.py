"""Whole engines side by side: methods, forced acceptance, engine calls."""
