"""Prompts: data sets, text, source code."""
