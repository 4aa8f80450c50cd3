"""Prompt lookup: drafts repeat what followed an earlier occurrence in the request's own text."""

from trtspec.speculative.ngram.options import NGramDecodingConfig

__all__ = ["NGramDecodingConfig"]
