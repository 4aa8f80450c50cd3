"""Tokenizers in a checkpoint's own format, converted to transformers'."""
