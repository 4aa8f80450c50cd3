"""Tiny GGUF files, written by the `gguf` package: what a test can bend before it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, VOCAB = 8, 4, 64, 256, 512, 40
ARCHITECTURES = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}

# Where blocks have their float16 scales, and values of them that make weights of about 0.1.
SCALES: Mapping[str, Mapping[int, float]] = {
    "Q4_0": {0: 0.02},
    "Q4_1": {0: 0.02, 2: -0.15},
    "Q5_0": {0: 0.01},
    "Q5_1": {0: 0.01, 2: -0.15},
    "Q8_0": {0: 0.001},
    "Q4_K": {0: 3e-4, 2: 2e-3},
    "Q5_K": {0: 1.5e-4, 2: 2e-3},
    "Q6_K": {208: 5e-5},
    "Q2_K": {80: 8e-3, 82: 8e-3},
    "Q3_K": {108: 2e-3},
    "IQ4_NL": {0: 1e-3},
    "IQ4_XS": {0: 5e-5},
    "MXFP4": {},
}
FLOATS = ("F32", "F16", "BF16")
TYPES = (*FLOATS, *SCALES)


@dataclass(frozen=True)
class Stored:
    """A tensor in a type of ggml: ``raw`` is what `gguf.GGUFWriter` takes."""

    kind: str
    raw: np.ndarray

    @property
    def values(self) -> torch.Tensor:
        """What the package itself makes of it: float32."""
        floats = gguf.dequantize(self.raw, gguf.GGMLQuantizationType[self.kind])
        return torch.from_numpy(np.array(floats, np.float32))


def random_tensor(kind: str, shape: Sequence[int], random: np.random.Generator) -> Stored:
    """Any blocks, of a type that is not read too; floats of size 0.1."""
    ggml = gguf.GGMLQuantizationType[kind]
    if kind in FLOATS:
        floats = random.normal(0, 0.1, shape).astype(np.float32)
        return Stored(kind, gguf.quantize(floats, ggml))
    raw = random.integers(0, 256, gguf.quant_shape_to_byte_shape(shape, ggml), np.uint8)
    blocks = raw.reshape(-1, gguf.GGML_QUANT_SIZES[ggml][1])
    for at, scale in SCALES.get(kind, {}).items():
        scales = np.full((len(blocks), 1), scale, np.float16) * random.uniform(0.5, 1.5)
        blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = random.integers(121, 125, len(blocks), np.uint8)  # exponents, less 127
    return Stored(kind, raw)


@dataclass
class TinyGguf:
    """``tensors`` by GGUF's names; of the metadata the architecture is written first."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Stored] = field(default_factory=dict)
    architecture: str = "llama"

    def write(self, file: Path, tensors_a_part: int = 0, **options: Any) -> Path:
        """One file, or parts of so many tensors; returns the first."""
        options["split_max_tensors"] = tensors_a_part
        writer = gguf.GGUFWriter(file, self.architecture, **options)
        for key, value in self.metadata.items():
            _add(writer, key, value)
        for name, tensor in self.tensors.items():
            kind = None if tensor.kind in ("F32", "F16") else tensor.kind
            ggml = None if kind is None else gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, tensor.raw, raw_dtype=ggml)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file if file.is_file() else min(file.parent.glob(f"{file.stem}-*"))


def _add(writer: Any, key: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def decoder_metadata(architecture: str, **changes: Any) -> dict[str, Any]:
    """Of a decoder with one layer; ``changes`` by key behind the architecture, a dot as ``__``."""
    values = {
        "context_length": 128,
        "embedding_length": HIDDEN,
        "block_count": 1,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return {f"{architecture}.{k}": value for k, value in values.items() if value is not None}


def gguf_name(architecture: str, name: str) -> str:
    """llama.cpp's name for one of Hugging Face's tensors, as the package maps it."""
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES[architecture])
    found = gguf.get_tensor_name_map(arch, 1).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found, name
    return str(found)


def side_by_side(rows: int, heads: int) -> torch.Tensor:
    """The order in which llama.cpp's converter writes q and k of a Llama: row i of the file is row
    ``order[i]`` of Hugging Face's."""
    return torch.arange(rows).view(heads, 2, -1).transpose(1, 2).flatten()


def tiny(kind: str = "Q4_0", vocab: int = VOCAB, **changes: Any) -> TinyGguf:
    """A whole Llama with random weights, without a tokenizer; ``changes`` of its metadata."""
    random = np.random.default_rng(0)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocab, HIDDEN),
        "output": (vocab, HIDDEN),
        "blk.0.attn_q": (queries, HIDDEN),
        "blk.0.attn_k": (keys, HIDDEN),
        "blk.0.attn_v": (keys, HIDDEN),
        "blk.0.attn_output": (HIDDEN, queries),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "output_norm": (HIDDEN,),
    }
    tensors = {
        f"{name}.weight": random_tensor(kind if len(shape) == 2 else "F32", shape, random)
        for name, shape in shapes.items()
    }
    return TinyGguf(decoder_metadata("llama", **changes), tensors)
