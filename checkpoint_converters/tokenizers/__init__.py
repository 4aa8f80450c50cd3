"""Tokenizers that a checkpoint's own format spells, made into those of transformers."""
