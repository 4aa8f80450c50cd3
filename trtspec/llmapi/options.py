"""LLMConfig: the options of `LLM` besides the model and the speculative config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

from trtspec.config.build_config import ADAPTER_OPTIONS, WEIGHT_OPTIONS, BuildConfig
from trtspec.config.cuda_graph import CudaGraphConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.config.strict import strict_config, to_dict
from trtspec.errors import ConfigError
from trtspec.executor.schedule.admission import admission_order
from trtspec.llmapi.lora import read_modules
from trtspec.llmapi.peer_options import ALIASES, FOREIGN
from trtspec.speculative.recording import read_transfer

_MAX_WAIT = 60.0
"""Longer than requests wait for a place on a server that keeps up with its load."""


@strict_config(aliases=ALIASES, foreign=FOREIGN, none_means_default=True)
@dataclass(frozen=True)
class LLMConfig:
    """Checked options of `LLM`.

    For a checkpoint, ``dtype``, ``max_batch_size``, ``max_seq_len``, ``max_num_tokens``,
    ``tokens_per_block``, ``backend``, ``device``, ``weight_dtype``, ``weight_group_size``,
    ``head_weight_dtype``, ``embedding_weight_dtype``, ``activation_dtype``, ``few_row_products``,
    ``tensor_parallel_size``, ``enable_expert_parallel``, ``enable_lora``, ``max_loras`` and
    ``max_lora_rank`` describe the engine to build (see BuildConfig). In an engine folder they are
    fixed; only the three maxima may be lowered. ``seed`` makes the seeds that are drawn for
    requests without one reproducible. ``backend_options`` (or ``tensorrt_config``): options of the
    backend, as a mapping or as its config object. ``skip_tokenizer_init``: prompts are token ids
    and outputs have no text. ``kv_transfer_config``: vLLM's, for the method extract_hidden_states.
    ``verify_checkpoint``: hash the checkpoint's files again, even if their digests are remembered
    from an earlier start. ``async_scheduling``: deliver the last step's results and accept new
    requests while engine calls run; False: only between steps. The texts are the same.
    ``steps_ahead``: how many steps are launched before the result of one is read; then running
    requests are kept on the device, where drafts are made too. 0: none, the default until a GPU has
    run it; on a CPU it saves no time. The texts are the same. ``verbose``: report slow parts of
    opening, such as compiling, on standard error, unless the package's log reports them.
    ``lora_modules``: adapters to load at the start, ``{name: path}`` or a list of ``name=path``;
    they imply ``enable_lora``.

    ``scheduling_policy``: which waiting requests begin first. "fcfs": in order of arrival;
    "priority": those with the lowest ``priority`` (see `LLM.generate`), equal ones in order of
    arrival; requests that have waited ``priority_max_wait`` seconds begin before all others, so
    that none waits for ever. Or a function that gets a tuple of the waiting requests and returns
    all of them in the order in which they are to begin. It may read, but not change, the fields of
    `trtspec.executor.request.Request`: ``id``, ``priority``, ``params``, ``tokens``,
    ``num_prompt_tokens``, ``num_output_tokens`` (above 0: it was preempted), ``max_output_tokens``
    and ``arrival_time``. The worker's thread calls it before each step in which several requests
    wait and one may begin, so it must be fast and cannot call the LLM. If it fails, the waiting
    requests fail with it. Running requests and all texts are unaffected by the policy.

    ``cuda_graph_config``: a CudaGraphConfig or its options, True (defaults) or False (no graphs, as
    with ``enforce_eager=True``); None: graphs if the engine runs on CUDA. On a CPU there are no
    graphs; if they are requested, steps are padded as they would be with graphs.
    ``cuda_graph_max_batch_size`` bounds the graphs of None and True only (SGLang:
    ``cuda_graph_max_bs``). ``kv_cache_dtype``: the ``dtype`` of ``kv_cache_config``.
    ``gpu_memory_utilization`` (SGLang: ``mem_fraction_static``): its ``memory_fraction``, the share
    of the device's memory that may be in use once weights and KV caches are allocated, by whatever
    process.
    """

    dtype: str = "auto"
    max_batch_size: int | None = None
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    tokens_per_block: int | None = None
    backend: str | None = None
    device: str | None = None
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    cuda_graph_config: CudaGraphConfig | bool | None = None
    cuda_graph_max_batch_size: int | None = None
    backend_options: Any = None
    enforce_eager: bool = False
    async_scheduling: bool = True
    steps_ahead: int = 0
    scheduling_policy: Any = "fcfs"
    priority_max_wait: float = _MAX_WAIT
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    seed: int | None = None
    kv_transfer_config: Any = None
    weight_dtype: str | None = None
    weight_group_size: int | None = None
    head_weight_dtype: str | None = None
    embedding_weight_dtype: str | None = None
    activation_dtype: str | None = None
    few_row_products: bool = False
    tensor_parallel_size: int | None = None
    enable_expert_parallel: bool = False
    enable_lora: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None
    lora_modules: Any = None
    verify_checkpoint: bool = False
    verbose: bool = True

    def __post_init__(self) -> None:
        _plain_options(self.backend_options)
        object.__setattr__(self, "lora_modules", read_modules(self.lora_modules))
        object.__setattr__(self, "enable_lora", self.enable_lora or bool(self.lora_modules))
        if self.scheduling_policy is None:
            object.__setattr__(self, "scheduling_policy", "fcfs")
        if not self.priority_max_wait > 0:
            raise ConfigError(
                f"priority_max_wait={self.priority_max_wait!r} must be above 0, in seconds"
            )
        if self.steps_ahead < 0:
            raise ConfigError(
                f"steps_ahead={self.steps_ahead} must be 0 (every result is read before the next "
                "step is launched) or more"
            )
        admission_order(self.scheduling_policy, self.priority_max_wait)
        if self.scheduling_policy != "priority" and self.priority_max_wait != _MAX_WAIT:
            raise ConfigError(
                f"priority_max_wait={self.priority_max_wait!r} has no effect without "
                "scheduling_policy='priority'; set that too, or leave it out"
            )
        transfer = read_transfer("LLMConfig: `kv_transfer_config`", self.kv_transfer_config)
        object.__setattr__(self, "kv_transfer_config", transfer)
        if self.enforce_eager and self.cuda_graph_config:
            raise ConfigError(
                "enforce_eager=True runs without CUDA graphs, but cuda_graph_config asks for them; "
                "give one of the two"
            )
        self._graphs_of_at_most(self.cuda_graph_max_batch_size)
        if self.kv_cache_dtype is not None:
            cache = replace(self.kv_cache_config, dtype=self.kv_cache_dtype)
            object.__setattr__(self, "kv_cache_config", cache)
        if self.gpu_memory_utilization is not None:
            cache = replace(self.kv_cache_config, memory_fraction=self.gpu_memory_utilization)
            object.__setattr__(self, "kv_cache_config", cache)

    def build_config(self) -> BuildConfig:
        """The build config that these options describe."""
        names = ("max_batch_size", "max_seq_len", "max_num_tokens", "tokens_per_block", "backend")
        more = ("device", "tensor_parallel_size", "enable_expert_parallel")
        every = *names, *more, *WEIGHT_OPTIONS, *ADAPTER_OPTIONS
        named = {name: getattr(self, name) for name in every}
        given = {name: value for name, value in named.items() if value is not None}
        options = _plain_options(self.backend_options)
        kept = self.kv_cache_config.dtype
        return BuildConfig(dtype=self.dtype, backend_options=options, kv_cache_dtype=kept, **given)

    def graph_config(self, device: str) -> CudaGraphConfig | None:
        """The graph sizes for an engine on that device, or for padding only; None for neither."""
        asked = self.cuda_graph_config
        if isinstance(asked, CudaGraphConfig):
            return asked
        wanted = device == "cuda" if asked is None else asked
        graphs = self._graphs_of_at_most(self.cuda_graph_max_batch_size)
        return graphs if wanted and not self.enforce_eager else None

    def _graphs_of_at_most(self, size: int | None) -> CudaGraphConfig:
        if size is not None and isinstance(self.cuda_graph_config, CudaGraphConfig):
            raise ConfigError(
                f"cuda_graph_max_batch_size={size} came beside cuda_graph_config; write it there, "
                "as max_batch_size"
            )
        return CudaGraphConfig(max_batch_size=size)


def _plain_options(given: Any) -> dict[str, Any]:
    """A backend's options as plain values, which the backend checks."""
    if given is None:
        return {}
    if is_dataclass(given) and not isinstance(given, type):
        return to_dict(given)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"backend_options must be a mapping of options, got {type(given).__name__} "
            f"{given!r:.80}"
        )
    return dict(given)
