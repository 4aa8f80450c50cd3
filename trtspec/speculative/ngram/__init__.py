"""Prompt lookup: drafts go on as the request's own text did before."""

from trtspec.speculative.ngram.options import NGramDecodingConfig

__all__ = ["NGramDecodingConfig"]
