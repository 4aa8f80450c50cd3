"""The method draft_model."""

from __future__ import annotations

from trtspec.config.model import ModelConfig
from trtspec.models.causal_lm import CausalLM
from trtspec.speculative.base import DraftMethod
from trtspec.speculative.draft_kind import DraftKind, PlainRollout
from trtspec.speculative.draft_model.checkpoint import LANGUAGE_MODEL_READER
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.pass_graphs import TREE_GRAPHS, one_pass, token_parts, token_passes
from trtspec.speculative.token_drafter import TokenDrafter, token_needs

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


DRAFT_MODEL = DraftMethod(
    DraftTargetDecodingConfig,
    "a draft model",
    token_needs,
    TokenDrafter.of,
    spellings=("drafttarget", "standalone"),
    kinds=(LANGUAGE_MODEL,),
    reader=LANGUAGE_MODEL_READER,
)
