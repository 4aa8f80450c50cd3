"""BuildConfig: the limits and the numeric formats that an engine is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.config.adapters import AdapterSizes
from trtspec.config.kv import cache_dtype
from trtspec.config.model import DTYPES
from trtspec.config.strict import Foreign, from_dict, nearest, strict_config, to_dict
from trtspec.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
MAX_BATCH_SIZE = 4096
MAX_TOKENS_PER_BLOCK = 1024
MAX_LORAS = 256
MAX_LORA_RANK = 256
LORA_RANK_STEP = 8
"""Elements that lie in the 16 bytes to which torch's grouped product aligns matrices."""

WEIGHT_OPTIONS = (
    "weight_dtype",
    "weight_group_size",
    "head_weight_dtype",
    "embedding_weight_dtype",
    "activation_dtype",
    "few_row_products",
)
"""The options about storing and multiplying weights."""

ADAPTER_OPTIONS = ("enable_lora", "max_loras", "max_lora_rank")
"""Those about room for adapters."""

_DTYPE_ALIASES = {
    **{name: name for name in DTYPES},
    "fp32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
}


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

    dtype: float32, bfloat16 or float16 (also fp32, bf16, fp16, half), or auto: the checkpoint's,
    bfloat16 instead of float16 on CPUs; around quantised weights float32, while K/V is float16 and
    weights that stay floats are in the former. max_batch_size: requests in one step. max_seq_len:
    prompt and output of one request, in tokens; None: what the model was made for (with longrope,
    the range of its short factors), or less where slots of that length would not fit into memory.
    max_num_tokens: rows in one step, including prefill chunks and draft nodes; None: derived from
    the other two and the drafts. tokens_per_block: tokens in a block of the KV cache, a power of
    two; unused where a sequence has one slot instead of blocks. backend: the name of one of
    `trtspec.backends`, or auto (the default one). backend_options: options of that backend, as
    plain values. device: cpu, cuda (the first visible device) or auto (cuda where torch finds one).
    weight_dtype: how linear layers keep their weights: auto (as in the checkpoint), the name of a
    format of `trtspec.formats`, or dtype. weight_group_size: input features that share a scale, in
    formats with scales; 0: all of an output; None: the format's usual size. head_weight_dtype: that
    of the vocabulary head; auto: as the other layers, or with more bits. embedding_weight_dtype:
    that of the embedding tables; auto: as in the checkpoint. activation_dtype: in what products
    with quantised weights are computed: int8 (dynamic activation quantisation, per row), dtype, or
    auto: int8 where the format has such products. few_row_products: on CUDA, multiply few rows by
    kernels of trtspec, which keep quantised weights too; they have not run on a GPU yet, so that
    nothing uses them by default. kv_cache_dtype: see `KvCacheConfig.dtype`.
    tensor_parallel_size: processes of one host that the target is split over.
    enable_expert_parallel: split mixtures by whole experts instead of splitting each expert.
    enable_lora: requests may have low-rank adapters; max_loras of them lie beside the weights at
    once, of ranks up to max_lora_rank. `resolve_build` replaces auto and None.
    """

    dtype: str = "auto"
    max_batch_size: int = 8
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    tokens_per_block: int = 16
    backend: str = "auto"
    device: str = "cpu"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    weight_dtype: str = "auto"
    weight_group_size: int | None = None
    head_weight_dtype: str = "auto"
    embedding_weight_dtype: str = "auto"
    activation_dtype: str = "auto"
    few_row_products: bool = False
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enable_lora: bool = False
    max_loras: int = 4
    max_lora_rank: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype))
        object.__setattr__(self, "kv_cache_dtype", cache_dtype(self.kv_cache_dtype))
        for name in (
            *("weight_dtype", "head_weight_dtype", "embedding_weight_dtype", "activation_dtype"),
        ):
            object.__setattr__(self, name, full_dtype(getattr(self, name)))
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
        if self.tensor_parallel_size < 1:
            raise ConfigError(
                f"tensor_parallel_size={self.tensor_parallel_size} must be at least 1"
            )
        if not 1 <= self.max_loras <= MAX_LORAS:
            raise ConfigError(f"max_loras={self.max_loras} must be between 1 and {MAX_LORAS}")
        rank = self.max_lora_rank
        if not 1 <= rank <= MAX_LORA_RANK or rank % LORA_RANK_STEP:
            raise ConfigError(
                f"max_lora_rank={rank} must be a multiple of {LORA_RANK_STEP} up to "
                f"{MAX_LORA_RANK}; adapters of lower ranks fit as well"
            )
        block = self.tokens_per_block
        if not 1 <= block <= MAX_TOKENS_PER_BLOCK or block & (block - 1):
            raise ConfigError(
                f"tokens_per_block={block} must be a power of two up to {MAX_TOKENS_PER_BLOCK}"
            )
        if self.device not in DEVICES:
            numbered = "; choose one of several GPUs with CUDA_VISIBLE_DEVICES"
            raise ConfigError(
                f"device {self.device!r} is unknown{numbered * self.device.startswith('cuda:')}"
                f"{nearest(self.device, DEVICES)} (available: {', '.join(DEVICES)})"
            )

    @property
    def adapters(self) -> AdapterSizes | None:
        """What there is room for beside the weights; None: no adapter."""
        return AdapterSizes(self.max_loras, self.max_lora_rank) if self.enable_lora else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` takes them back."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BuildConfig:
        return from_dict(cls, data)


def resolve_dtype(name: str) -> str:
    """'auto' or the full name of a dtype, from any of its spellings; ConfigError for any other."""
    plain = _plain_name(name)
    if plain == "auto":
        return plain
    if plain not in _DTYPE_ALIASES:
        raise ConfigError(
            f"dtype {name!r} is not supported{nearest(plain, _DTYPE_ALIASES)} "
            f"(supported: auto, {', '.join(DTYPES)})"
        )
    return _DTYPE_ALIASES[plain]


def full_dtype(name: str) -> str:
    """The full name of a dtype, from any of its spellings; other names are returned unchanged."""
    return _DTYPE_ALIASES.get(_plain_name(name), name)


def _plain_name(dtype: str) -> str:
    return dtype.removeprefix("torch.").lower()
