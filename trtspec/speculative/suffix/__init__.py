"""Suffix decoding: drafts go on as texts did before, by suffix trees."""

from trtspec.speculative.suffix.options import SuffixDecodingConfig

__all__ = ["SuffixDecodingConfig"]
