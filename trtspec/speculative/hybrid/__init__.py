"""Several methods at once, and how much of their drafts pays: hybrid, adaptive and auto."""

from trtspec.speculative.hybrid.options import AutoDecodingConfig, HybridDecodingConfig

__all__ = ["AutoDecodingConfig", "HybridDecodingConfig"]
