"""What a model family adds to the common reading: its layers and its tensor names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.families.composite import Composite
from checkpoint_converters.gguf_keys import GgufKeys
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import read_window
from checkpoint_converters.names import NameMap
from checkpoint_converters.stacked import Stacked
from trtspec.config.layer_tensors import EMBEDDING, HEAD
from trtspec.config.mixers.base import MixerSpec

Change: TypeAlias = Callable[[TensorHeader, MixerSpec], TensorHeader]
"""Converts a tensor of a layer with this mixer."""


@dataclass(frozen=True)
class GgufNames:
    """A family in GGUF files.

    ``architecture``: llama.cpp's name for it; ``names`` maps the tensors; ``paired``, ``fused``,
    ``mixed``, ``stacked``, ``changes``, ``norms_plus_one``: see `Family`; ``keys``: the family's
    metadata keys. ``sign``: a key whose nonzero value identifies the family among several with the
    same architecture.
    """

    architecture: str
    names: NameMap
    paired: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keys: GgufKeys = field(default_factory=GgufKeys)
    sign: str | None = None
    mixed: Mapping[str, Callable[[MixerSpec], Mapping[str, Tensor]]] = field(default_factory=dict)
    stacked: Mapping[str, Stacked] = field(default_factory=dict)
    norms_plus_one: bool = False
    changes: Mapping[str, Change] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """One supported architecture.

    ``architecture`` and ``model_type``: as spelled in config.json. ``read_fields`` returns the
    fields of ModelConfig, layer by layer, except ``architecture``, ``dtype`` and ``storage``.
    ``names`` maps its tensors.

    ``draft_defaults``: defaults for a draft whose decoder (``transformer_layer_config``) belongs to
    this family; None: there are no such drafts. ``gguf``: the family in GGUF files; None: not
    supported. ``composites``: checkpoints that hold the model beside vision towers.

    ``paired``: projections whose rows store the two numbers that rotate together next to each
    other, by internal names, with the field of `AttentionSpec` that counts their heads. ``fused``:
    tensors that hold several internal ones along their outputs, by names without ``.weight``, with
    the parts in order; a layer may lack some of the parts. ``mixed``: the same with interleaved
    rows: which rows belong to which part, in a layer with this mixer. ``stacked``: tensors that
    hold all experts of a layer. ``also``: alternative names of tensors, with the names in the map.
    ``changes``: how to convert a tensor, by its name, in a layer with this mixer.
    ``norms_plus_one``: files store 1 + w for norms that multiply by it.

    ``defaults``: transformers' defaults for absent keys of config.json that ``read_fields`` does
    not cover; without an end token no text would ever end.
    """

    architecture: str
    model_type: str
    read_fields: Callable[[HfConfig], dict[str, Any]]
    names: NameMap
    draft_defaults: Mapping[str, Any] | None = None
    gguf: GgufNames | None = None
    paired: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    mixed: Mapping[str, Callable[[MixerSpec], Mapping[str, Tensor]]] = field(default_factory=dict)
    composites: tuple[Composite, ...] = ()
    stacked: Mapping[str, Stacked] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    norms_plus_one: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def fields_of(self, hf: HfConfig) -> dict[str, Any]:
        """The result of ``read_fields`` for a file. A GGUF file's own reader knows what its keys
        mean."""
        return self.read_fields(hf if hf.is_gguf else hf.replacing(self.defaults))

    def within(self, composite: Composite) -> Family:
        """The family as stored in such a composite checkpoint, ignoring the other tensors."""
        ignored = (*self.names.ignored, *composite.others)
        return replace(self, names=replace(self.names, ignored=ignored))

    def in_gguf(self) -> Family:
        """The family in the spelling of GGUF files, for reading one."""
        assert self.gguf is not None
        gguf = self.gguf
        return replace(
            self,
            names=gguf.names,
            paired=gguf.paired,
            fused=gguf.fused,
            mixed=gguf.mixed,
            stacked=gguf.stacked,
            also={},
            changes=gguf.changes,
            norms_plus_one=gguf.norms_plus_one,
        )

    @property
    def embedding(self) -> str:
        """Its name for the embedding."""
        return self.names.names[EMBEDDING]

    @property
    def head(self) -> str:
        """Its name for the head."""
        return self.names.names[HEAD]

    @property
    def base_architecture(self) -> str:
        """The architecture in config.json if the decoder was saved alone: ``LlamaModel``."""
        return self.architecture.replace("ForCausalLM", "Model")


KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers in ``layer_types``."""


def marked(hf: HfConfig) -> tuple[bool, ...] | None:
    """Which layers have a window according to ``layer_types``; None without that list. Raises
    CheckpointError for other kinds."""
    kinds = hf.get("layer_types")
    if kinds is None:
        return None
    listed = kinds if isinstance(kinds, list) else [kinds]
    other = sorted({str(kind) for kind in listed} - set(KINDS))
    if other:
        raise hf.refuse(
            f"layer_types {', '.join(other)} are not supported; supported: {', '.join(KINDS)}"
        )
    return tuple(kind == "sliding_attention" for kind in listed)


def slides(hf: HfConfig, num_layers: int, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have a window, according to ``layer_types`` or, without that list, to
    ``default`` of their index. Raises CheckpointError for other kinds and for a list of the wrong
    length."""
    marks = marked(hf)
    if marks is None:
        return tuple(default(layer) for layer in range(num_layers))
    if len(marks) != num_layers:
        raise hf.refuse(f"layer_types names {len(marks)} layers, the model has {num_layers}")
    return marks


def sliding_windows(hf: HfConfig, num_layers: int) -> tuple[int, ...]:
    """The window of each layer (0: none) by Qwen's rule: ``sliding_window`` applies only with
    ``use_sliding_window``, to the layers marked in ``layer_types`` or, without that list, from
    ``max_window_layers`` on."""
    given = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
    marks = marked(hf)
    if marks is None:
        first = hf.get("max_window_layers", 28)
        marks = tuple(given is not None and layer >= first for layer in range(num_layers))
    if not any(marks):
        return (0,) * num_layers
    if len(marks) != num_layers:
        raise hf.refuse(f"layer_types names {len(marks)} layers, the model has {num_layers}")
    if given is None:
        raise hf.refuse("layer_types marks layers, but sliding_window is not set")
    window = read_window(hf, given)
    return tuple(window if mark else 0 for mark in marks)
