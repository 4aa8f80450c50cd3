"""Prediction modules in a target's checkpoint: where each family keeps them, and what they
compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD

LAYER = "layers.0."
NORM = "norm.weight"
EMBEDDING_NORM = "embedding_norm.weight"
STATE_NORM = "state_norm.weight"


@dataclass(frozen=True)
class PredictionModules:
    """How one family stores its modules and what they compute.

    name: of the family, for messages. root: the prefix of all tensor names of modules; ``{n}`` in
    it and in ``parts`` is the number of a module's layer, counted from 0 or, ``behind_target``,
    from the target's number of layers. parts: names by the common ones of drafts; ``LAYER`` is the
    prefix of a decoder layer's tensor names. model_types: of config.json, for which the family
    applies; None: any. state_first: the projection reads the state before the embedding.
    feeds_normed: the next pass gets the output of the module's last norm, not its input.
    unit_offset: norms multiply by 1 + weight.
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
        """How many modules there are among a checkpoint's tensors."""
        known, found = set(names), 0
        while self._is_there(self.at(found, num_layers), known):
            found += 1
        return found

    def _is_there(self, places: Places, names: set[str]) -> bool:
        """Judging by a tensor of its layer and, where a layer of the target would have the same
        names, by its projection."""
        layer = places.parts[LAYER]
        if self.behind_target and places.parts[FC] not in names:
            return False
        return any(name.startswith(layer) for name in names)


@dataclass(frozen=True)
class Places:
    """The names of one module's tensors: ``root``, the prefix of all, and by common names."""

    root: str
    parts: Mapping[str, str] = field(repr=False)

    def name(self, common: str) -> str:
        """A tensor's name in the checkpoint, by its common name."""
        if common.startswith(LAYER):
            return self.parts[LAYER] + common.removeprefix(LAYER)
        return self.parts.get(common, self.root + common)

    def layer_parts(self, names: Iterable[str]) -> list[str]:
        """Suffixes of the decoder layer's tensor names."""
        layer = self.parts[LAYER]
        return [name.removeprefix(layer) for name in names if name.startswith(layer)]


_OWN = {
    LAYER: "",
    FC: "eh_proj.weight",
    EMBEDDING_NORM: "enorm.weight",
    STATE_NORM: "hnorm.weight",
    NORM: "shared_head.norm.weight",
    HEAD: "shared_head.head.weight",
    EMBEDDING: "embed_tokens.weight",
}
_ROOT = "model.layers.{n}."
_PARTS = {common: _ROOT + name for common, name in _OWN.items()}

GLM_MODULES = PredictionModules(
    "GLM-4.5",
    _ROOT,
    _PARTS,
    model_types=("glm4_moe",),
    behind_target=True,
    feeds_normed=False,
)
DEEPSEEK_MODULES = PredictionModules("DeepSeek-V3", _ROOT, _PARTS, behind_target=True)

_MIMO_ROOT = "model.mtp_layers.{n}."
MIMO_MODULES = PredictionModules(
    "MiMo",
    _MIMO_ROOT,
    {
        LAYER: _MIMO_ROOT,
        FC: _MIMO_ROOT + "input_proj.weight",
        EMBEDDING_NORM: _MIMO_ROOT + "token_layernorm.weight",
        STATE_NORM: _MIMO_ROOT + "hidden_layernorm.weight",
        NORM: _MIMO_ROOT + "final_layernorm.weight",
    },
    state_first=True,
)
QWEN3_NEXT_MODULES = PredictionModules(
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
)
MODULES: tuple[PredictionModules, ...] = (
    MIMO_MODULES,
    QWEN3_NEXT_MODULES,
    GLM_MODULES,
    DEEPSEEK_MODULES,
)
"""The first entry whose tensors exist applies to a checkpoint."""


def module_tensors(names: Collection[str], num_layers: int) -> set[str]:
    """The tensors of a target's checkpoint that belong to prediction modules of any family."""
    all_names = set(names)
    found: set[str] = set()
    for family in MODULES:
        for module in range(family.count(all_names, num_layers)):
            root = family.at(module, num_layers).root
            found |= {name for name in all_names if name.startswith(root)}
    return found
