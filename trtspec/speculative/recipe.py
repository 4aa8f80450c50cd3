"""TrainingRecipe: how a method's head is trained for a target, as data that `train` uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig

_HEAD_DIM = 64

ATTENTION = "trtspec_training"
"""The name of a recipe's own attention in transformers."""


@dataclass(frozen=True)
class HeadRequest:
    """The head to be trained. ``target``: whose hidden states it will read. ``vocabulary``: how
    many of the target's tokens it may propose. ``depth``: tokens of its longest draft.
    ``mask_token``: the id that stands for unknown tokens, in networks that read one. ``window``:
    most rows of a text that it is trained on at once."""

    target: ModelConfig
    vocabulary: int
    depth: int
    mask_token: int
    window: int


@dataclass(frozen=True)
class TrainingRecipe:
    """A method's part of training; network, loss and export are NVIDIA ModelOpt's.

    algorithm: ModelOpt's name for the network. settings: of its conversion. module: the attribute
    of a converted model that is the head. capture_layers: the target's outputs that the head reads,
    ascending. body_weights: elements of all its matrices except a vocabulary head, for plans.
    depth: default length of the longest draft.

    depth_setting: the attribute for how many positions one pass unrolls, so that training can begin
    with one; None: they cost the same pass. cuts_vocabulary: the head has its own vocabulary, and
    may propose only part of the target's tokens. row_multiple: windows have a multiple of that many
    rows. memory_bound: functions of the converted model that pass over the vocabulary and are worth
    fusing. attention: of the network's layers, as a transformers attention function; settings name
    it `ATTENTION`. None: transformers' own. loss: what its figure sums up, in words.
    """

    algorithm: str
    settings: Callable[[HeadRequest], dict[str, Any]]
    module: str
    capture_layers: Callable[[ModelConfig], tuple[int, ...]]
    body_weights: Callable[[ModelConfig], int]
    depth: int
    depth_setting: str | None
    cuts_vocabulary: bool
    row_multiple: int
    memory_bound: tuple[str, ...]
    loss: str
    attention: Callable[..., Any] | None = None

    def recorded_layers(self, target: ModelConfig) -> tuple[int, ...]:
        """What is recorded from a target for training: the outputs that the head reads, and that of
        the final norm, from which the target's distribution follows."""
        return *self.capture_layers(target), target.num_layers


def decoder_sizes(target: ModelConfig) -> dict[str, int]:
    """Sizes of a plain decoder layer like the target's, by the keys of Hugging Face configs. If the
    target has no layer with plain attention or a dense feed-forward part: heads of 64 elements, 8/3
    of the hidden size."""
    hidden = target.hidden_size
    attention = next(filter(None, (AttentionSpec.maybe(s.mixer) for s in target.layers)), None)
    dense = next(filter(None, (DenseSpec.maybe(s.ffn) for s in target.layers)), None)
    heads = max(1, hidden // _HEAD_DIM)
    return {
        "num_attention_heads": attention.num_heads if attention else heads,
        "num_key_value_heads": attention.num_kv_heads if attention else heads,
        "head_dim": attention.head_dim if attention else _HEAD_DIM,
        "intermediate_size": dense.intermediate_size if dense else hidden * 8 // 3 // 16 * 16,
    }


def layer_weights(target: ModelConfig, attention_inputs: int) -> int:
    """Elements of the matrices of a layer of `decoder_sizes` whose queries, keys and values read
    ``attention_inputs`` elements."""
    sizes, hidden = decoder_sizes(target), target.hidden_size
    queries = sizes["num_attention_heads"] * sizes["head_dim"]
    keys = sizes["num_key_value_heads"] * sizes["head_dim"]
    attention = attention_inputs * (queries + 2 * keys) + queries * hidden
    return attention + 3 * hidden * sizes["intermediate_size"]
