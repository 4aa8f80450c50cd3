"""Suffix decoding: drafts continue a text as earlier texts did, using suffix trees."""

from trtspec.speculative.suffix.options import SuffixDecodingConfig

__all__ = ["SuffixDecodingConfig"]
