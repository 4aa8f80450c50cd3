"""BuildConfig: the limits and the number format an engine is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.config.model import DTYPES
from trtspec.config.strict import Foreign, from_dict, nearest, strict_config, to_dict
from trtspec.config.tensorrt import TensorRTConfig
from trtspec.errors import ConfigError

BACKENDS = ("aoti", "onnx", "tensorrt", "eager")
SLOT_BACKENDS = ("onnx", "tensorrt")
"""Those whose graphs have standard attention over slot caches in place of paged ones."""
BACKENDS_WITH_OPS = tuple(name for name in BACKENDS if name not in SLOT_BACKENDS)
"""The others: their graphs call the ops of trtspec."""
ONNX_DTYPES = ("float32", "float16")
"""What ONNX Runtime's kernels for CPUs compute in."""
DEVICES = ("auto", "cpu", "cuda")
MAX_BATCH_SIZE = 4096
MAX_TOKENS_PER_BLOCK = 1024

_DTYPE_ALIASES = {
    **{name: name for name in DTYPES},
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
}
_BACKENDS_ELSEWHERE = ("pytorch", "_autodeploy")


@strict_config(
    aliases={
        "max_model_len": "max_seq_len",
        "max_num_seqs": "max_batch_size",
        "max_num_batched_tokens": "max_num_tokens",
    },
    foreign={
        "max_beam_width": Foreign("beam search is not offered", (None, 1)),
        "max_input_len": Foreign("`max_seq_len` bounds prompt and output together", (None,)),
    },
)
@dataclass(frozen=True)
class BuildConfig:
    """What an engine is built for; ConfigError names a value and its limit.

    dtype: auto (the checkpoint's), float32, bfloat16 or float16 (also fp32, bf16, fp16, half).
    max_batch_size: requests in one step. max_seq_len: prompt and output of one request, in tokens;
    None: what the model was made for. max_num_tokens: rows in one step, prefill chunks and draft
    nodes included; None: chosen from the two and the drafts. tokens_per_block: tokens of one block
    of the KV cache, a power of two. backend: aoti (compiled), onnx (a standard ONNX graph, run by
    ONNX Runtime on the CPU, with a slot KV cache: tokens_per_block does not count), tensorrt
    (engines for a GPU, of that graph, made as ``tensorrt`` says) or eager (the same modules
    uncompiled, for tests and debugging). device: cpu, cuda (the first device that
    CUDA_VISIBLE_DEVICES leaves) or auto (cuda where torch finds one). weight_dtype: in what linear
    layers keep their weights: auto (that of the checkpoint), a format of `trtspec.formats` by name,
    or dtype. weight_group_size: how many input features of an output share a scale of a format that
    has scales; 0: all of them.
    `resolve_build` replaces auto and None.
    """

    dtype: str = "auto"
    max_batch_size: int = 8
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    tokens_per_block: int = 16
    backend: str = "aoti"
    device: str = "cpu"
    tensorrt: TensorRTConfig = field(default_factory=TensorRTConfig)
    weight_dtype: str = "auto"
    weight_group_size: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype))
        weights = _DTYPE_ALIASES.get(_plain_name(self.weight_dtype), self.weight_dtype)
        object.__setattr__(self, "weight_dtype", weights)
        if not 1 <= self.max_batch_size <= MAX_BATCH_SIZE:
            raise ConfigError(
                f"max_batch_size={self.max_batch_size} must be between 1 and {MAX_BATCH_SIZE}"
            )
        if self.max_seq_len is not None and self.max_seq_len < 2:
            raise ConfigError(
                f"max_seq_len={self.max_seq_len} must be at least 2: a prompt token and an output"
            )
        if self.max_num_tokens is not None and self.max_num_tokens < 1:
            raise ConfigError(f"max_num_tokens={self.max_num_tokens} must be at least 1")
        block = self.tokens_per_block
        if not 1 <= block <= MAX_TOKENS_PER_BLOCK or block & (block - 1):
            raise ConfigError(
                f"tokens_per_block={block} must be a power of two up to {MAX_TOKENS_PER_BLOCK}"
            )
        if self.backend not in BACKENDS:
            absent = " is not available in this version" * (self.backend in _BACKENDS_ELSEWHERE)
            raise ConfigError(
                f"backend {self.backend!r}{absent or ' is unknown'}"
                f"{nearest(self.backend, BACKENDS)} (available: {', '.join(BACKENDS)})"
            )
        if self.backend != "tensorrt" and self.tensorrt != TensorRTConfig():
            raise ConfigError(
                f"options of TensorRT were given ({self.tensorrt}) with backend {self.backend!r}; "
                "they need backend 'tensorrt'"
            )
        if self.device not in DEVICES:
            numbered = "; choose one of several GPUs with CUDA_VISIBLE_DEVICES"
            raise ConfigError(
                f"device {self.device!r} is unknown{numbered * self.device.startswith('cuda:')}"
                f"{nearest(self.device, DEVICES)} (available: {', '.join(DEVICES)})"
            )

    @property
    def has_slots(self) -> bool:
        """Whether a sequence has one slot of the cache in place of blocks."""
        return self.backend in SLOT_BACKENDS

    @property
    def accepts_in_engine(self) -> bool:
        """Whether the target's engine makes its masks, samples and accepts, by plugins."""
        return self.backend == "tensorrt" and bool(self.tensorrt.plugins)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` takes them back."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BuildConfig:
        return from_dict(cls, data)


def resolve_dtype(name: str) -> str:
    """'auto' or the full name of a dtype from one of its spellings; ConfigError for any other."""
    plain = _plain_name(name)
    if plain == "auto":
        return plain
    if plain not in _DTYPE_ALIASES:
        raise ConfigError(
            f"dtype {name!r} is not supported{nearest(plain, _DTYPE_ALIASES)} "
            f"(supported: auto, {', '.join(DTYPES)})"
        )
    return _DTYPE_ALIASES[plain]


def _plain_name(dtype: str) -> str:
    return dtype.removeprefix("torch.").lower()
