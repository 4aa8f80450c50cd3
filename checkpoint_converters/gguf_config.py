"""The metadata of a GGUF file -> the equivalent keys and values of a config.json."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.containers.safetensors_files import DTYPES
from checkpoint_converters.gguf_keys import GgufKeys, layer_windows
from checkpoint_converters.tokenizers.gguf_token_types import end_tokens

ARCHITECTURE = "general.architecture"
"""GGUF's own key, kept among the values."""

BLOCKS_AS = "bfloat16"
"""The dtype of a model with quantised weights, unless another is requested."""

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS = "rope_factors_short.weight"
LONG_FACTORS = "rope_factors_long.weight"
_STILL = 1e20
"""A frequency divided by this much or more belongs to a pair that does not rotate."""

_FIELDS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
}

# What these would change is not read. By key: the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "embedding_scale": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "rope.dimension_sections": ([0, 0, 0, 0],),
    "nextn_predict_layers": (0,),
}

_NO_MATRICES = ("_norm.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "ffn_gate_inp.weight")
"""Suffixes of tensors that may have two dimensions but are float32 in every file."""

# Llama 3.1 and after: their factors are a tensor in the file, not the numbers it was made of.
_LLAMA_3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read_gguf_config(file: GgufFile, keys: GgufKeys) -> dict[str, Any]:
    """What the families read, under config.json's keys, and `ARCHITECTURE`. ``keys``: those of the
    family.

    Raises:
        CheckpointError: a key is missing, has a value of the wrong type, or one that would change
            the model in an unsupported way; key and value are named.
    """
    architecture = file.text(ARCHITECTURE)

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    for name, allowed in _NEUTRAL.items():
        if name in keys.taken:
            continue
        value = file.get(key(name), allowed[0])
        if value not in allowed:
            raise file.refuse(
                f"{key(name)} is {value!r}, which is not supported; supported: "
                f"{' or '.join(map(repr, allowed))}"
            )
    values: dict[str, Any] = {ARCHITECTURE: architecture}
    layers = file.integer(key("block_count"))
    values |= {
        ours: _by_layer(file, key(theirs), layers)
        if ours in keys.by_layer
        else file.integer(key(theirs), *_instead(file, key(keys.instead.get(theirs, ""))))
        for ours, theirs in _FIELDS.items()
    }
    if layers > len(file.tensors):
        raise file.refuse(
            f"{key('block_count')} is {layers}, more than its {len(file.tensors)} tensors"
        )
    heads = values["num_attention_heads"]
    kv_heads = key("attention.head_count_kv")
    values["num_key_value_heads"] = (
        _by_layer(file, kv_heads, layers)
        if "num_key_value_heads" in keys.by_layer
        else file.integer(kv_heads, heads)
    )
    epsilon, ours = keys.epsilon
    values[ours] = file.number(key(epsilon))
    head_dim = _head_dim(file, architecture, values)
    values["head_dim"] = head_dim
    if EMBEDDING not in file.tensors:
        raise file.refuse(f"it has no tensor {EMBEDDING}; get a file that holds a whole model")
    values["vocab_size"] = file.tensors[EMBEDDING].shape[0]
    values["tie_word_embeddings"] = HEAD not in file.tensors
    biases = {"attn_q", "attn_qkv"}
    values["attention_bias"] = any(f"blk.0.{name}.bias" in file.tensors for name in biases)
    values["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    part = _rotated_part(file, architecture, head_dim, keys)
    values["rope_parameters"] = _rope(file, architecture, head_dim, keys) | part
    values |= layer_windows(file, architecture, keys, layers)
    values["dtype"] = _dtype(file)
    values["bos_token_id"] = file.token_id("bos")
    values["eos_token_id"] = end_tokens(file, values["vocab_size"])
    for theirs, ours in keys.reads.items():
        number = file.number(key(theirs), None)
        if number:  # llama.cpp, too, takes 0 for not given
            values[ours] = number
    return values if keys.derives is None else values | keys.derives(file, values)


def _instead(file: GgufFile, key: str) -> list[int]:
    """A value that another key may give for an absent one."""
    return [] if file.get(key) is None else [file.integer(key)]


def _by_layer(file: GgufFile, key: str, layers: int) -> Any:
    """A number, or a list of one per layer."""
    found = file.get(key)
    if not isinstance(found, list):
        return file.integer(key)
    if len(found) != layers or not all(type(number) is int for number in found):
        raise file.refuse(f"{key} is {found!r:.60}, neither a number nor a list of {layers}")
    return found


def _head_dim(file: GgufFile, architecture: str, values: dict[str, Any]) -> int:
    """One size for queries, keys and values."""
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    default = hidden // heads if heads > 0 else 0
    size: int = file.integer(f"{architecture}.attention.key_length", default)
    _require_size(file, f"{architecture}.attention.value_length", size)
    return size


def _require_size(file: GgufFile, key: str, size: int) -> None:
    other = file.integer(key, size)
    if other != size:
        raise file.refuse(f"{key} is {other}, heads have {size}; supported: the same size")


def _rotated_part(
    file: GgufFile, architecture: str, head_dim: int, keys: GgufKeys
) -> dict[str, float]:
    """The rotated part of a head, in a family that may rotate only a part."""
    key = f"{architecture}.rope.dimension_count"
    if not keys.partial_rotation:
        _require_size(file, key, head_dim)
        return {}
    turned = file.integer(key, head_dim)
    if not 0 < turned <= head_dim:
        raise file.refuse(f"{key} is {turned}; heads have {head_dim}")
    # A product of the head's size and this, rounded down, is that number again.
    return {"partial_rotary_factor": min(1.0, (turned + 0.5) / head_dim)}


def _rope(file: GgufFile, architecture: str, head_dim: int, keys: GgufKeys) -> dict[str, Any]:
    prefix = f"{architecture}.rope."
    theta = file.number(f"{prefix}freq_base", 10000.0)
    if keys.marks_turning:
        return {"rope_theta": theta, "rope_type": "proportional", **_turning(file, head_dim)}
    if ROPE_FACTORS in file.tensors:
        return {"rope_theta": theta, "rope_type": "llama3", **_llama_3(file, theta, head_dim)}
    if keys.longrope and LONG_FACTORS in file.tensors:
        return {"rope_theta": theta, "rope_type": "longrope", **_longrope(file, prefix)}
    factor = file.number(f"{prefix}scaling.factor", file.number(f"{prefix}scale_linear", None))
    # llama.cpp takes a factor that comes without a type for a linear one, and 0 for none.
    kind = file.text(f"{prefix}scaling.type", "linear")
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return {"rope_theta": theta, "rope_type": "default"}
    if kind == "yarn":  # without a factor transformers would derive one
        factor = file.number(f"{prefix}scaling.factor")
    given = {
        "factor": factor,
        "original_max_position_embeddings": file.integer(
            f"{prefix}scaling.original_context_length", None
        ),
        "beta_fast": file.number(f"{prefix}scaling.yarn_beta_fast", None),
        "beta_slow": file.number(f"{prefix}scaling.yarn_beta_slow", None),
    }
    said = {name: value for name, value in given.items() if value is not None}
    return {"rope_theta": theta, "rope_type": kind, **said}


def _turning(file: GgufFile, head_dim: int) -> dict[str, float]:
    """The part of a head that rotates. Its pairs have a factor of 1; the factors of all others
    exceed the length of any text."""
    if ROPE_FACTORS not in file.tensors:
        raise file.refuse(f"it has no tensor {ROPE_FACTORS}; convert it anew")
    found = file.tensors[ROPE_FACTORS].read().float().tolist()
    turning = found.count(1.0)
    still = found[turning:]
    if (
        len(found) != head_dim // 2
        or found[:turning].count(1.0) != turning
        or (still and min(still) < _STILL)
    ):
        raise file.refuse(
            f"the factors in {ROPE_FACTORS} are {_some(found)}; supported: for {head_dim // 2} "
            f"pairs, some 1 and then numbers from {_STILL:g} on"
        )
    return {"partial_rotary_factor": 2 * turning / head_dim}


def _longrope(file: GgufFile, prefix: str) -> dict[str, Any]:
    """Both sets of factors, which are tensors in the file."""
    found: dict[str, Any] = {
        "original_max_position_embeddings": file.integer(
            f"{prefix}scaling.original_context_length"
        ),
        "attention_factor": file.number(f"{prefix}scaling.attn_factor", 1.0),
    }
    for ours, theirs in (("short_factor", SHORT_FACTORS), ("long_factor", LONG_FACTORS)):
        if theirs not in file.tensors:
            raise file.refuse(f"it has no tensor {theirs}, but {LONG_FACTORS}; convert it anew")
        found[ours] = file.tensors[theirs].read().float().tolist()
    return found


def _llama_3(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """The settings that yield the factors in a file; CheckpointError if none do."""
    found = file.tensors[ROPE_FACTORS].read().float().tolist()
    factor = max(found, default=1.0)
    waves = [theta ** (2 * i / head_dim) for i in range(len(found))]
    expected = [_llama_3_factor(factor, wave) for wave in waves]
    same = all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(found, expected, strict=True))
    if not same or len(found) != head_dim // 2:
        raise file.refuse(
            f"the factors in {ROPE_FACTORS} ({_some(found)}) are not those of Llama 3.1 with "
            f"factor {factor:g} ({_some(expected)}), the only ones that are supported"
        )
    return {"factor": factor, **_LLAMA_3}


def _llama_3_factor(factor: float, wave: float) -> float:
    """The divisor of a frequency with a wavelength of so many tokens (over 2 pi)."""
    low, high = _LLAMA_3["low_freq_factor"], _LLAMA_3["high_freq_factor"]
    turns = _LLAMA_3["original_max_position_embeddings"] / (2 * math.pi * wave)
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return 1 / (kept + (1 - kept) / factor)


def _dtype(file: GgufFile) -> str:
    """The common dtype of the matrices, float32 if they differ; `BLOCKS_AS` if any is quantised."""
    matrices = [
        tensor
        for name, tensor in file.tensors.items()
        if len(tensor.shape) > 1 and not name.endswith(_NO_MATRICES)
    ]
    if any(tensor.is_quantised for tensor in matrices):
        return BLOCKS_AS
    dtypes = {tensor.dtype for tensor in matrices}
    return DTYPES[dtypes.pop()] if len(dtypes) == 1 else "float32"


def _some(numbers: Iterable[float]) -> str:
    listed = [f"{number:g}" for number in numbers]
    return ", ".join(listed if len(listed) <= 8 else [*listed[:4], "...", *listed[-4:]])
