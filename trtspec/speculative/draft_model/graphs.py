"""The graphs of a language model that drafts."""

from __future__ import annotations

from trtspec.config.model import ModelConfig
from trtspec.models.causal_lm import CausalLM
from trtspec.speculative.draft_kind import DraftKind, PlainRollout
from trtspec.speculative.pass_graphs import TREE_GRAPHS, one_pass, token_parts, token_passes

LANGUAGE_MODEL = DraftKind(
    ModelConfig,
    __name__,
    lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
    CausalLM.matrices,
    lambda module, draft, target: module.load_weights(draft),
    TREE_GRAPHS,
    token_parts,
    token_passes,
    plain=lambda config: PlainRollout(),
    one_pass=one_pass,
)
