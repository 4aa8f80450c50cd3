"""What a model family adds to the common reading: its layers, and its tensor names."""

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
"""What becomes of a tensor of a layer with that mixer."""


@dataclass(frozen=True)
class GgufNames:
    """A family in GGUF files.

    ``architecture``: what llama.cpp calls it; ``names`` maps the tensors; ``paired``, ``fused``,
    ``mixed``, ``stacked``, ``changes``, ``norms_plus_one``: see `Family`; ``keys``: what its files
    say. ``sign``: a key by whose value, other than zero, the family is known among several of the
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

    ``architecture`` and ``model_type`` as config.json spells them; ``read_fields`` gives the fields
    of ModelConfig, layer by layer, but for ``architecture``, ``dtype`` and ``storage``; ``names``
    maps its tensors. ``draft_defaults``: what a draft whose decoder is of this family
    (``transformer_layer_config``) has where it says nothing; None: no drafts are. ``gguf``: the
    family in GGUF files; None: not read from them. ``paired``: projections whose rows lie with the
    two numbers that are rotated together side by side, by internal names, and what `AttentionSpec`
    calls the number of their heads. ``fused``: tensors that hold several internal ones along their
    outputs, by their names without ``.weight``, and the parts in order, of which a layer may have
    some. ``mixed``: the same where rows of the parts are interleaved: which rows are whose, in a
    layer with such a mixer. ``composites``: checkpoints that hold the model beside towers for
    images. ``stacked``: tensors that hold all experts of a layer. ``also``: other names of
    tensors, with those that the map has for them. ``changes``: what is made of a tensor, by its
    name, in a layer with such a mixer. ``norms_plus_one``: the files hold 1 + w of norms that
    multiply by that. ``defaults``: what transformers means where
    config.json does not have a key, beside what ``read_fields`` knows; an absent end token would
    never end a text.
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
        """What ``read_fields`` gives of a file. A GGUF file's own reader knows what it means."""
        return self.read_fields(hf if hf.is_gguf else hf.replacing(self.defaults))

    def within(self, composite: Composite) -> Family:
        """The family as such a checkpoint holds it, whose other tensors it leaves out."""
        ignored = (*self.names.ignored, *composite.others)
        return replace(self, names=replace(self.names, ignored=ignored))

    def in_gguf(self) -> Family:
        """The family as GGUF files spell it, in which it is read."""
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
        """What it calls its embedding."""
        return self.names.names[EMBEDDING]

    @property
    def head(self) -> str:
        """What it calls its head."""
        return self.names.names[HEAD]

    @property
    def base_architecture(self) -> str:
        """What config.json says where the decoder was saved alone: ``LlamaModel``."""
        return self.architecture.replace("ForCausalLM", "Model")


KINDS = ("full_attention", "sliding_attention")
"""Of layers, as ``layer_types`` says them."""


def marked(hf: HfConfig) -> tuple[bool, ...] | None:
    """Which layers ``layer_types`` says to have a window; None without that list. Raises
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
    """Which layers have a window, by ``layer_types``, or without that list by ``default`` of their
    index. Raises CheckpointError for other kinds and for a list of another length."""
    marks = marked(hf)
    if marks is None:
        return tuple(default(layer) for layer in range(num_layers))
    if len(marks) != num_layers:
        raise hf.refuse(f"layer_types names {len(marks)} layers, the model has {num_layers}")
    return marks


def sliding_windows(hf: HfConfig, num_layers: int) -> tuple[int, ...]:
    """The window of each layer, 0: none, by Qwen's rule: ``sliding_window`` counts only with
    ``use_sliding_window``, and then for the layers that ``layer_types`` marks or, without that
    list, from ``max_window_layers`` on."""
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
