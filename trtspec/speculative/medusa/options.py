"""MedusaDecodingConfig: heads on the target's newest hidden state draft a tree at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_ENGINE_FOREIGN,
    MODEL_ALIASES,
    TREE_ALIASES,
)
from trtspec.config.strict import Foreign, strict_config
from trtspec.config.tree import Choices, TreeShape
from trtspec.config.tree_decoding import LEFT_OUT, ChoicesDecodingConfig, agree
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.errors import ConfigError
from trtspec.speculative.medusa.choices import default_choices

_TYPICAL = (
    "typical acceptance changes the text, so it must be asked for by its name: write "
    "lossy_typical_acceptance={'posterior_threshold': ..., 'posterior_alpha': ...}"
)
_FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys(
        (
            *("posterior_threshold", "typical_acceptance_sampler_posterior_threshold"),
            *("posterior_alpha", "typical_acceptance_sampler_posterior_alpha"),
        ),
        Foreign(_TYPICAL, (None,)),
    ),
    **dict.fromkeys(
        ("acceptance_method", "spec_decoding_acceptance_method"),
        Foreign(_TYPICAL, (None, "rejection_sampler")),
    ),
    "eagle_choices": Foreign("write the paths as medusa_choices", (None,)),
}


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_ENGINE_FOREIGN, **_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class MedusaDecodingConfig(ChoicesDecodingConfig):
    """Medusa: head h guesses the token h + 1 places after the newest one. Depth D takes D heads.

    The tree is one of three. Static: ``medusa_choices``, one path per node, the rank of each step
    among its head's guesses, such as ((0,), (1,), (0, 0)), also as JSON text; by default a tree for
    D heads, of ``num_draft_tokens`` rows if that is given. Chain: topk=1. Dynamic: topk=k above 1
    keeps the ``num_draft_tokens`` - 1 best of all paths through every head's k best.

    num_medusa_heads: heads to draft with; another name for ``max_draft_len``. One of the two is
    needed unless there are choices. TensorRT-LLM's `max_draft_len` counts the nodes of the tree,
    which is understood if it is given with num_medusa_heads or medusa_choices and exceeds the
    number of heads. lossy_typical_acceptance: see `TypicalAcceptanceConfig`; {} takes its defaults.
    By default acceptance is lossless.
    """

    method: ClassVar[str] = "medusa"
    choices_key: ClassVar[str] = "medusa_choices"
    usual_steps: ClassVar[int | None] = None

    medusa_choices: Choices | str | None = None
    num_medusa_heads: int | None = None
    lossy_typical_acceptance: TypicalAcceptanceConfig | None = None

    def __post_init__(self) -> None:
        heads = self.num_medusa_heads
        if heads is not None and heads < 1:
            raise ConfigError(f"num_medusa_heads={heads} must be at least 1")
        super().__post_init__()
        if heads is not None and self.max_draft_len > heads:
            raise ConfigError(
                f"the tree is {self.max_draft_len} deep, which takes as many heads, but "
                f"num_medusa_heads={heads}; raise it or draft less deep"
            )
        if self.lossy_typical_acceptance and self.simulate_acceptance is not None:
            raise ConfigError(
                "simulate_acceptance and lossy_typical_acceptance both decide which drafts are "
                "accepted; give one of the two"
            )

    @property
    def typical_acceptance(self) -> TypicalAcceptanceConfig | None:
        return self.lossy_typical_acceptance

    def _resolve_tree(self) -> TreeShape:
        choices = self._choices
        if choices is not None and not isinstance(choices, str):
            tree = TreeShape.static(choices, self.choices_key)
            if self.max_draft_len == tree.num_nodes:
                self._set("max_draft_len", tree.num_steps)
        return super()._resolve_tree()

    def _resolve_numbers(self) -> TreeShape:
        heads = self.num_medusa_heads
        if heads is not None:
            if self.max_draft_len > heads:  # TensorRT-LLM's number of nodes
                agree(self, "max_total_draft_tokens", self.max_draft_len, "max_draft_len means")
                agree(self, "num_draft_tokens", self.max_draft_len + 1, "max_draft_len means")
                self._set("max_total_draft_tokens", self.max_draft_len)
            if not 0 < self.max_draft_len <= heads:
                self._set("max_draft_len", heads)
        if self.max_draft_len == LEFT_OUT:
            raise ConfigError(
                f"{type(self).__name__}: missing option `num_medusa_heads`, the number of heads to "
                "draft with: write num_medusa_heads (or num_speculative_tokens), for example 4, or "
                "give a tree as medusa_choices"
            )
        if self.topk != LEFT_OUT or self.use_dynamic_tree:
            return super()._resolve_numbers()
        self._check_common()
        rows, nodes = self.num_draft_tokens, self.max_total_draft_tokens
        if rows != LEFT_OUT:
            agree(self, "max_total_draft_tokens", rows - 1, f"num_draft_tokens={rows} means")
            nodes = rows - 1
        if nodes != LEFT_OUT and nodes < self.max_draft_len:
            raise ConfigError(
                f"num_draft_tokens={nodes + 1} rows cannot hold the root and a path through "
                f"{self.max_draft_len} heads; raise it to {self.max_draft_len + 1} or draft less "
                "deep"
            )
        wanted = None if nodes == LEFT_OUT else nodes
        return TreeShape.static(default_choices(self.max_draft_len, wanted), self.choices_key)
