"""The method extract_hidden_states."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.hidden_states.drafter import ExtractHiddenStatesDrafter
from trtspec.speculative.hidden_states.options import ExtractHiddenStatesConfig

EXTRACT_HIDDEN_STATES = DraftMethod(
    ExtractHiddenStatesConfig,
    "extraction of hidden states",
    ExtractHiddenStatesDrafter.needs_of,
    lambda config, draft: ExtractHiddenStatesDrafter(config),
)
