"""The method assistant."""

from __future__ import annotations

from trtspec.speculative.assistant.checkpoint import ASSISTANT_READER
from trtspec.speculative.assistant.drafter import AssistantDrafter
from trtspec.speculative.assistant.graphs import ASSISTANTS
from trtspec.speculative.assistant.options import AssistantDecodingConfig
from trtspec.speculative.base import DraftMethod

ASSISTANT = DraftMethod(
    AssistantDecodingConfig,
    "assistant",
    AssistantDrafter.needs_of,
    lambda config, draft: AssistantDrafter(draft.over_target, AssistantDrafter.needs_of(config)),
    spellings=("frozenkvmtp", "gemma4assistant", "gemma4mtp"),
    kinds=(ASSISTANTS,),
    reader=ASSISTANT_READER,
)
