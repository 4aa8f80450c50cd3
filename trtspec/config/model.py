"""The shape of a decoder-only transformer, as the models and engines need it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.config.rope import RopeConfig
from trtspec.config.storage import WeightStorage
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = ("silu",)


@strict_config()
@dataclass(frozen=True)
class ModelConfig:
    """One decoder of the Llama family; its variants are these flags, never the architecture's name.

    Sizes are in elements. ``attention_bias`` is about q, k and v, ``attention_output_bias`` about
    o; ``qk_norm`` is an RMS norm of each query and key head before the rotation. A layer with
    ``sliding_layers[i]`` sees the last ``sliding_window`` tokens, its own included; with
    ``sliding_layers`` None every layer does, with ``sliding_window`` None none does. ``dtype`` is
    that of the checkpoint, not of the engine; so is ``storage``: how its linear layers are
    quantised, None where they have ``dtype``. Raises ConfigError when fields contradict each other.

    A language model may draft for another: it is a `DraftConfig` as well.
    """

    kind: ClassVar[str] = "model"
    method: ClassVar[str] = "draft_model"
    capture_layers: ClassVar[tuple[int, ...]] = ()

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] | None = None
    rope: RopeConfig = dataclasses.field(default_factory=RopeConfig)
    hidden_act: str = "silu"
    dtype: str = "float32"
    storage: WeightStorage | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
        for name in (*sizes, "num_kv_heads", "head_dim", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if not self.rms_norm_eps >= 0:
            raise ConfigError(f"rms_norm_eps is {self.rms_norm_eps}; it must not be negative")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(f"sliding_window is {self.sliding_window}; it must be at least 1")
        if self.sliding_layers is not None:
            if len(self.sliding_layers) != self.num_layers:
                raise ConfigError(
                    f"sliding_layers names {len(self.sliding_layers)} layers, "
                    f"the model has {self.num_layers}"
                )
            if any(self.sliding_layers) and self.sliding_window is None:
                raise ConfigError("sliding_layers marks layers, but sliding_window is not set")
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"activation {self.hidden_act!r} is not supported; "
                f"supported: {', '.join(ACTIVATIONS)}"
            )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"dtype {self.dtype!r} is not supported; supported: {', '.join(DTYPES)}"
            )
        if any(token < 0 for token in self.eos_token_ids):
            raise ConfigError(f"eos_token_ids are {self.eos_token_ids}; ids must not be negative")

    def window(self, layer: int) -> int:
        """Sliding window of a layer in tokens; 0 = none (the attention op's convention)."""
        slides = self.sliding_layers is None or self.sliding_layers[layer]
        return self.sliding_window if self.sliding_window is not None and slides else 0

    @property
    def max_sequence(self) -> int:
        """Tokens of the longest sequence: ``max_position_embeddings``, or what its rope stretches
        positions to where that is more, as vLLM derives it."""
        rope, limit = self.rope, self.max_position_embeddings
        if rope.type == "linear":
            return max(limit, int(limit * rope.factor))
        if rope.type == "yarn" and rope.original_max_position_embeddings is not None:
            return max(limit, int(rope.original_max_position_embeddings * rope.factor))
        return limit

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of K and V that one token takes over all layers (times the dtype's bytes)."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @property
    def decoder(self) -> ModelConfig:
        """The shape of its layers: its own."""
        return self

    @property
    def layer_elements(self) -> int:
        """Elements of the matrices of all layers."""
        heads = 2 * (self.num_heads + self.num_kv_heads)
        attention = self.hidden_size * self.head_dim * heads
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def matrix_elements(self) -> int:
        """Elements of the matrices that one pass reads: the layers' and the head."""
        return self.layer_elements + self.vocab_size * self.hidden_size

    def for_steps(self, num_steps: int) -> ModelConfig:
        """Itself: a language model drafts as deep as one likes."""
        return self

    def describe(self) -> str:
        """The model in one line."""
        stored = self.storage.name if self.storage else self.dtype
        return (
            f"{self.architecture}, {self.num_layers} layers, hidden {self.hidden_size}, "
            f"vocabulary {self.vocab_size}, checkpoint {stored}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` takes them back."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`, also after JSON; raises ConfigError on an unknown key."""
        return from_dict(cls, data)
