"""Names that the tensors of drafts are brought to, whatever their format calls them."""

from __future__ import annotations

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
FC = "fc.weight"
