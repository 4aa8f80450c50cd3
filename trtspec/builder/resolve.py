"""Resolves defaults for one model, with a reason for each, for `--dry_run` and the build log."""

from __future__ import annotations

from dataclasses import replace

from trtspec.backends.base import Backend
from trtspec.backends.registry import (
    AUTO,
    DEFAULT,
    backend_named,
    backends,
    options_of,
    usual_backend,
)
from trtspec.builder.sequence_length import check_length, usual_length
from trtspec.builder.slot_lengths import SlotLengths
from trtspec.config.build_config import BuildConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.config.strict import to_dict
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.formats.base import Place
from trtspec.formats.choose import check_tied, kept_storage, resolve_weights, usual_dtypes
from trtspec.log import logger

PREFILL_ROWS = 2048
_KEPT = "float16"
"""The dtype of K/V around quantised weights. In bfloat16, though processors multiply it faster, too
little is left of keys that a bias makes large and alike (Qwen 2's: 0.2 nats at single tokens).
"""


def place_of(backend: Backend, device: str, build: BuildConfig) -> Place:
    """Where the networks of a build run, whose dtype is resolved.

    Raises:
        ConfigError: few_row_products, where there are none.
    """
    with_ops = tuple(each.name for each in backends().values() if each.runs_ops)
    few_rows = build.few_row_products
    if few_rows and (device != "cuda" or not backend.runs_ops):
        raise ConfigError(
            f"few_row_products=True on backend {backend.name!r} and device {device!r}: those are "
            f"kernels for CUDA, which {' and '.join(with_ops)} call; leave it out"
        )
    if few_rows and build.dtype == "float32":
        raise ConfigError(
            "few_row_products=True with dtype float32: those kernels multiply bfloat16 or float16; "
            "give such a dtype, or leave few_row_products out"
        )
    return Place(backend.name, device, backend.runs_ops, with_ops, few_rows)


def resolve_build(
    config: BuildConfig, model: ModelConfig, speculative: DecodingConfig | None = None
) -> tuple[BuildConfig, list[str]]:
    """`config` with auto and None replaced, and one line for each choice. ConfigError if a request
    does not fit the model or the drafts; given values are never changed."""
    reasons: list[str] = []
    backend = backend_named(config.backend)
    options = options_of(backend, config.backend_options)
    if config.backend == AUTO and (missing := usual_backend()[1]) is not None:
        reasons.append(f"backend {backend.name}: {missing}; engines that are compiled are faster")
        logger.warning("%s", reasons[-1])
    dtype = floats = config.dtype
    device, reason = backend.resolve_device(config.device)
    if dtype == "auto":
        floats, why = _usual_floats(model.dtype, backend, device)
        dtype, floats = usual_dtypes(config, model.storage, floats)
        if dtype != floats:
            why = (
                "around quantised weights more bits cost next to nothing; weights that stay floats "
                f"are {floats}, K/V is {_KEPT} unless another dtype is asked for"
            )
        reasons.append(f"dtype {dtype}: {why}")
    elif dtype not in backend.dtypes:
        raise ConfigError(
            f"dtype {dtype!r} is not available on backend {backend.name!r}: {backend.no_dtype}; "
            f"use {' or '.join(backend.dtypes)}, or backend {DEFAULT!r}"
        )
    if reason is not None:
        reasons.append(f"device {device}: {reason}")
    backend.check_options(options, dtype)

    place = place_of(backend, device, replace(config, dtype=dtype))
    kept = kept_storage(config, model.storage, place, floats)
    config, choice = resolve_weights(config, dtype, model.storage, place, floats)
    reasons += choice
    if kept is None:
        check_tied(config, model.head.tied)

    if config.kv_cache_dtype == AUTO and floats != dtype:
        config = replace(config, kv_cache_dtype=_KEPT)

    rows = speculative.num_rows if speculative else 1
    slots = None
    if backend.has_slots(options):
        chosen = replace(config, dtype=dtype, device=device, backend=backend.name)
        memory = backend.memory_to_build_for(device, options)
        slots = SlotLengths.of(replace(model, storage=kept), chosen, memory, rows)
    max_seq_len = config.max_seq_len
    if max_seq_len is None:
        max_seq_len, shortened = model.usual_sequence, None
        if slots is not None:
            max_seq_len, shortened = slots.default(max_seq_len, config.max_batch_size)
        reasons.append(shortened or f"max_seq_len {max_seq_len}: {usual_length(model)}")
    else:
        reasons += check_length(model, max_seq_len)
    if slots is not None:
        slots.check(max_seq_len)
    for member in speculative.members if speculative else ():
        limit = member.max_model_len
        if not isinstance(member, TreeDecodingConfig) and limit is not None and limit < max_seq_len:
            raise ConfigError(
                f"speculative_config's max_model_len={limit} is below max_seq_len={max_seq_len}; "
                f"{member.method} drafts in every text: leave max_model_len out"
            )

    verify_rows = config.max_batch_size * rows
    max_num_tokens = config.max_num_tokens
    if max_num_tokens is None:
        prefill = min(PREFILL_ROWS, config.max_batch_size * max_seq_len)
        max_num_tokens = max(prefill, verify_rows)
        why = (
            f"max_batch_size {config.max_batch_size} x {rows} rows of a verify step"
            if verify_rows > prefill
            else "prefill in large chunks"
            if prefill == PREFILL_ROWS
            else f"max_batch_size {config.max_batch_size} prompts of max_seq_len {max_seq_len}"
        )
        reasons.append(f"max_num_tokens {max_num_tokens}: {why}")
    elif max_num_tokens < config.max_batch_size:
        raise ConfigError(
            f"max_num_tokens={max_num_tokens} is below max_batch_size={config.max_batch_size}; "
            f"every request of a batch needs a row: raise the former or lower the latter"
        )
    elif max_num_tokens < verify_rows:
        reasons.append(
            f"drafts shortened in full batches: max_num_tokens {max_num_tokens} is below "
            f"max_batch_size {config.max_batch_size} x {rows} rows of a verify step = {verify_rows}"
        )
    resolved = replace(
        config,
        dtype=dtype,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        device=device,
        backend=backend.name,
        backend_options=to_dict(options),
    )
    return resolved, reasons


def _usual_floats(stored: str, backend: Backend, device: str) -> tuple[str, str]:
    """The dtype of the floats of engines for a checkpoint of dtype ``stored``, and why."""
    if stored == "float16" and device == "cpu":
        # Models that were trained in bfloat16 are often published in float16, where Gemma's
        # residual stream overflows. CPUs turn either into float32 first, so they take as long.
        dtype, lacks = "bfloat16", ""
        if dtype not in backend.dtypes:
            dtype, lacks = backend.dtypes[0], f"{backend.no_dtype}, and "
        return dtype, (
            f"{lacks}the checkpoint's float16 overflows above 65504, as activations of some models "
            "do; ask for float16 to have it all the same"
        )
    if stored in backend.dtypes:
        return stored, "that of the checkpoint"
    return backend.dtypes[0], backend.no_dtype
