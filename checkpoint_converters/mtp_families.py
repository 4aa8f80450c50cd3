"""MTP modules inside a target's checkpoint: where each family keeps them, and what it does with
them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from checkpoint_converters.eagle_names import EMBEDDING, FC, HEAD

LAYER = "layers.0."
NORM = "norm.weight"
EMBEDDING_NORM = "embedding_norm.weight"
STATE_NORM = "state_norm.weight"


@dataclass(frozen=True)
class MtpFamily:
    """How one family stores its modules and what they compute.

    root: with what the names of all tensors of modules begin; ``{n}`` in it and in ``parts`` is the
    number of a module's layer, ``{first}`` that of module 0: 0, or the target's number of layers
    where ``behind_target``. parts: names by the common ones of `eagle_names`; ``LAYER`` is the
    beginning of the names of a decoder layer's tensors. model_types: those of config.json that the
    family is for; None: any. state_first: the projection reads the state before the embedding.
    feeds_normed: the next pass is fed the output of the module's last norm, not what the norm
    reads. unit_offset: norms multiply by 1 + weight.
    """

    name: str
    root: str
    parts: Mapping[str, str]
    model_types: tuple[str, ...] | None = None
    behind_target: bool = False
    state_first: bool = False
    feeds_normed: bool = True
    unit_offset: bool = False

    def at(self, module: int, num_layers: int) -> Places:
        """Module number ``module`` of a target of ``num_layers`` layers."""
        number = module + (num_layers if self.behind_target else 0)
        fields = {common: name.format(n=number) for common, name in self.parts.items()}
        return Places(self.root.format(n=number), fields)

    def count(self, names: Iterable[str], num_layers: int) -> int:
        """How many modules there are among a checkpoint's tensors, counted from 0 on."""
        known, found = set(names), 0
        while self._is_there(self.at(found, num_layers), known):
            found += 1
        return found

    def _is_there(self, places: Places, names: set[str]) -> bool:
        """By a tensor of its layer and, where a layer of the target's would have the same names,
        by its projection."""
        layer = places.parts[LAYER]
        if self.behind_target and places.parts[FC] not in names:
            return False
        return any(name.startswith(layer) for name in names)


@dataclass(frozen=True)
class Places:
    """The names of one module's tensors: ``root``, with which all begin, and by common names."""

    root: str
    parts: Mapping[str, str] = field(repr=False)

    def name(self, common: str) -> str:
        """A tensor's name in the checkpoint, by its common name."""
        if common.startswith(LAYER):
            return self.parts[LAYER] + common.removeprefix(LAYER)
        return self.parts.get(common, self.root + common)

    def layer_parts(self, names: Iterable[str]) -> list[str]:
        """What follows the beginning of the names of the decoder layer's tensors."""
        layer = self.parts[LAYER]
        return [name.removeprefix(layer) for name in names if name.startswith(layer)]


def _behind_target(own: Mapping[str, str]) -> dict[str, str]:
    return {common: "model.layers.{n}." + name for common, name in own.items()}


_DEEPSEEK = _behind_target(
    {
        LAYER: "",
        FC: "eh_proj.weight",
        EMBEDDING_NORM: "enorm.weight",
        STATE_NORM: "hnorm.weight",
        NORM: "shared_head.norm.weight",
        HEAD: "shared_head.head.weight",
        EMBEDDING: "embed_tokens.weight",
    }
)

FAMILIES = (
    MtpFamily(
        "MiMo",
        "model.mtp_layers.{n}.",
        {
            LAYER: "model.mtp_layers.{n}.",
            FC: "model.mtp_layers.{n}.input_proj.weight",
            EMBEDDING_NORM: "model.mtp_layers.{n}.token_layernorm.weight",
            STATE_NORM: "model.mtp_layers.{n}.hidden_layernorm.weight",
            NORM: "model.mtp_layers.{n}.final_layernorm.weight",
        },
        state_first=True,
    ),
    MtpFamily(
        "Qwen3-Next",
        "mtp.",
        {
            LAYER: "mtp.layers.{n}.",
            FC: "mtp.fc.weight",
            EMBEDDING_NORM: "mtp.pre_fc_norm_embedding.weight",
            STATE_NORM: "mtp.pre_fc_norm_hidden.weight",
            NORM: "mtp.norm.weight",
        },
        unit_offset=True,
    ),
    MtpFamily(
        "GLM-4.5",
        "model.layers.{n}.",
        _DEEPSEEK,
        model_types=("glm4_moe",),
        behind_target=True,
        feeds_normed=False,
    ),
    MtpFamily("DeepSeek-V3", "model.layers.{n}.", _DEEPSEEK, behind_target=True),
)
"""The first family whose tensors are there is a checkpoint's."""

_NOT_RUN = (
    (r"self_attn\.(q_a_proj|kv_a_proj\w*|kv_b_proj)\.", "multi-head latent attention (MLA)"),
    (r"linear_attn\.", "linear attention"),
    (r"self_attn\.\w*sink\w*", "attention sinks"),
    (r"(mlp|ffn)\.(experts|shared_experts?|gate|router)\.", "a mixture of experts (MoE)"),
)


def unrun_parts(layer_parts: Iterable[str]) -> list[str]:
    """What of a module's decoder layer this version does not run, each with a tensor that shows
    it."""
    names = sorted(layer_parts)
    found = []
    for pattern, what in _NOT_RUN:
        name = next((name for name in names if re.match(pattern, name)), None)
        if name is not None:
            found.append(f"{what}, tensor {name}")
    return found


def mtp_tensors(names: Iterable[str], num_layers: int) -> set[str]:
    """The tensors of a target's checkpoint that belong to MTP modules, of whatever family."""
    all_names = set(names)
    found: set[str] = set()
    for family in FAMILIES:
        for module in range(family.count(all_names, num_layers)):
            root = family.at(module, num_layers).root
            found |= {name for name in all_names if name.startswith(root)}
    return found
