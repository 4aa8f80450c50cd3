"""Options of `LLM` beside the model and the speculative config."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.config.build import BuildConfig
from trtspec.config.extract_hidden_states import KvTransferConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.config.strict import Foreign, strict_config

_ONE_DEVICE = "an engine runs on one device"
_ALIASES = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "block_size": "tokens_per_block",
}
_FOREIGN = {
    "tensor_parallel_size": Foreign(_ONE_DEVICE, (None, 1)),
    "pipeline_parallel_size": Foreign(_ONE_DEVICE, (None, 1)),
    "data_parallel_size": Foreign(_ONE_DEVICE, (None, 1)),
    "enforce_eager": Foreign(
        "give True or False; CPU engines have no graphs to leave out", (None, False, True)
    ),
    "async_scheduling": Foreign("steps are synchronous", (None, False)),
    "disable_overlap_scheduler": Foreign("steps are synchronous", (None, True)),
    "enable_chunked_prefill": Foreign("long prompts are always fed in chunks", (None, True)),
    "trust_remote_code": Foreign("no code is ever loaded from a checkpoint", (None, False)),
    "quantization": Foreign("quantised checkpoints are not supported", (None,)),
    "load_format": Foreign("checkpoints are safetensors", (None, "auto", "safetensors")),
    "revision": Foreign("download the revision and give its folder", (None,)),
    "device": Foreign("engines of this version run on the CPU", (None, "auto", "cpu")),
    "kv_cache_dtype": Foreign("the cache has the engine's dtype", (None, "auto")),
    "enable_prefix_caching": Foreign(
        "write kv_cache_config={'enable_block_reuse': False} to turn prefix reuse off", (None, True)
    ),
    "gpu_memory_utilization": Foreign(
        "write kv_cache_config={'free_memory_fraction': ...} or {'max_tokens': ...}", (None,)
    ),
    "disable_log_stats": Foreign("ask `get_metrics()`", (None, True, False)),
}


@strict_config(aliases=_ALIASES, foreign=_FOREIGN, none_means_default=True)
@dataclass(frozen=True)
class LLMConfig:
    """Checked options of `LLM`.

    For a checkpoint, ``dtype``, ``max_batch_size``, ``max_seq_len``, ``max_num_tokens``,
    ``tokens_per_block`` and ``backend`` describe the engine to build (see BuildConfig). For an
    engine folder they are fixed; the three maxima may be given smaller. ``seed`` makes the seeds
    drawn for requests without one reproducible. ``skip_tokenizer_init``: prompts are token ids and
    outputs have no text. ``kv_transfer_config``: vLLM's, for the method extract_hidden_states.
    """

    dtype: str = "auto"
    max_batch_size: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    tokens_per_block: int | None = None
    backend: str | None = None
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    seed: int | None = None
    kv_transfer_config: KvTransferConfig | None = None

    def build_config(self) -> BuildConfig:
        """The engine that these options ask for."""
        names = ("max_batch_size", "max_seq_len", "max_num_tokens", "tokens_per_block", "backend")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return BuildConfig(dtype=self.dtype, **given)
