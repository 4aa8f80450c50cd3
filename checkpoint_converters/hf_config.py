"""config.json in the spellings of transformers 4 and 5: what all families read alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_converters.containers.safetensors_files import read_json
from checkpoint_converters.rope import read_rope
from trtspec.config.model import ACTIVATIONS, DTYPES
from trtspec.errors import CheckpointError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class HfConfig:
    """The two JSON files of a folder, and where they came from (for messages)."""

    folder: Path
    values: Mapping[str, Any]
    generation: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> HfConfig:
        """Raises CheckpointError when config.json is missing or either file is damaged."""
        generation = folder / GENERATION_CONFIG
        return cls(
            folder,
            read_json(folder / CONFIG),
            read_json(generation) if generation.is_file() else {},
        )

    def get(self, key: str, default: Any = None) -> Any:
        """A value; JSON's null counts as absent."""
        value = self.values.get(key)
        return default if value is None else value

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.folder / CONFIG} does not say {key}")
        return value

    def refuse(self, message: str) -> CheckpointError:
        """An error about this file, to raise."""
        return CheckpointError(f"{self.folder / CONFIG}: {message}")


def common_fields(hf: HfConfig, default_kv_heads: int | None) -> dict[str, Any]:
    """Fields of ModelConfig that every family reads alike, head_dim defaulting to H / heads.

    ``default_kv_heads`` stands in for an absent num_key_value_heads; None: as many as heads.
    Raises CheckpointError for other activations and rope types not supported.
    """
    activation = hf.get("hidden_act", "silu")
    if activation == "swish":
        activation = "silu"
    if activation not in ACTIVATIONS:
        raise hf.refuse(
            f"hidden_act {activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    heads, hidden = hf.require("num_attention_heads"), hf.require("hidden_size")
    head_dim = hf.get("head_dim")
    if head_dim is None:
        if not (isinstance(heads, int) and isinstance(hidden, int) and heads > 0):
            raise hf.refuse(f"hidden_size {hidden!r} and num_attention_heads {heads!r} do not fit")
        if hidden % heads:
            raise hf.refuse(
                f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, "
                "and head_dim is not given"
            )
        head_dim = hidden // heads
    return {
        "vocab_size": hf.require("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": hf.require("intermediate_size"),
        "num_layers": hf.require("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": hf.get("num_key_value_heads", default_kv_heads or heads),
        "head_dim": head_dim,
        "rms_norm_eps": hf.get("rms_norm_eps", 1e-6),
        "max_position_embeddings": hf.require("max_position_embeddings"),
        "tie_word_embeddings": hf.get("tie_word_embeddings", False),
        "rope": read_rope(hf.values, hf.refuse),
        "hidden_act": activation,
        "bos_token_id": hf.get("bos_token_id", hf.generation.get("bos_token_id")),
        "eos_token_ids": _eos(hf),
    }


def read_dtype(hf: HfConfig) -> str | None:
    """The dtype that config.json names (``dtype`` or, older, ``torch_dtype``); None if neither."""
    dtype = hf.get("dtype", hf.get("torch_dtype"))
    if dtype in (None, "auto"):
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise hf.refuse(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    return name


def _eos(hf: HfConfig) -> tuple[int, ...]:
    """End tokens: generation_config.json says them, one or a list; else config.json."""
    file, value = GENERATION_CONFIG, hf.generation.get("eos_token_id")
    if value is None:
        file, value = CONFIG, hf.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    wrong = [token for token in ids if isinstance(token, bool) or not isinstance(token, int)]
    if wrong:
        raise CheckpointError(
            f"{hf.folder / file}: eos_token_id {value!r} is neither a token id nor a list of them"
        )
    return tuple(dict.fromkeys(ids))
