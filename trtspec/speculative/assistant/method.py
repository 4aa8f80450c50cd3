"""The method assistant."""

from __future__ import annotations

from trtspec.backends.parts import OpenParts
from trtspec.errors import EngineError
from trtspec.models.signature import rollout_signature
from trtspec.speculative.assistant.checkpoint import ASSISTANT_READER
from trtspec.speculative.assistant.drafter import AssistantDrafter
from trtspec.speculative.assistant.network import Assistant
from trtspec.speculative.assistant.options import AssistantDecodingConfig
from trtspec.speculative.assistant.rollout import FrozenRollout
from trtspec.speculative.assistant.shape import AssistantConfig
from trtspec.speculative.base import DraftMethod
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT, Built, DraftGraph, DraftKind


def _rollout(config: AssistantConfig, built: Built) -> DraftGraph:
    width = config.target_hidden_size
    return DraftGraph(
        lambda module: FrozenRollout(module, built.tree, built.layout.tokens_per_block),
        lambda: rollout_signature(config.read_caches, built.dtype, built.layout, width),
        passes=built.tree.num_steps,
    )


def _no_parts(config: AssistantConfig, parts: OpenParts) -> Assistant:
    raise EngineError("an assistant has no parts over slots; builds refuse it")


ASSISTANTS = DraftKind(
    AssistantConfig,
    __name__,
    lambda config, target, dtype, formats: Assistant(config, target, dtype, formats=formats),
    Assistant.matrices,
    lambda module, draft, target: module.load_weights(draft),
    {DRAFT_ROLLOUT: _rollout},
    lambda config, states: (),
    _no_parts,
    slots=lambda config, tree: 0,
    target_layers=lambda config: config.target_layers,
)


ASSISTANT = DraftMethod(
    AssistantDecodingConfig,
    "assistant",
    AssistantDrafter.needs_of,
    lambda config, draft: AssistantDrafter(draft.over_target, AssistantDrafter.needs_of(config)),
    spellings=("frozenkvmtp", "gemma4assistant", "gemma4mtp"),
    kinds=(ASSISTANTS,),
    reader=ASSISTANT_READER,
)
