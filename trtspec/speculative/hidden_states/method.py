"""The method extract_hidden_states."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod, Recording
from trtspec.speculative.hidden_states.drafter import ExtractHiddenStatesDrafter
from trtspec.speculative.hidden_states.options import (
    ExtractHiddenStatesConfig,
    KvTransferConfig,
    layers_from_a_command_line,
)

EXTRACT_HIDDEN_STATES = DraftMethod(
    ExtractHiddenStatesConfig,
    "extraction of hidden states",
    ExtractHiddenStatesDrafter.needs_of,
    lambda config, draft: ExtractHiddenStatesDrafter(config),
    prepare=layers_from_a_command_line,
    recording=Recording(
        KvTransferConfig,
        ExtractHiddenStatesConfig.captured_layers,
        ExtractHiddenStatesConfig.over_engine,
        ExtractHiddenStatesConfig.ready,
    ),
)
