"""Schemes of quantised weights: one file each."""
