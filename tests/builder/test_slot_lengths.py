"""The default length of sequences that have slots of their own, by the memory there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trtspec.backends.base as base
from trtspec.builder.resolve import resolve_build
from trtspec.builder.slot_lengths import ASSUMED_MEMORY, SlotLengths
from trtspec.config.build_config import BuildConfig
from trtspec.errors import ConfigError

from ..tiny_config import tiny_config

# As Llama-3.1-8B: 16 GB of weights in 16 bits, 128 KiB of K/V a token.
LLAMA_8B = tiny_config("llama", 128256, 4096, 14336, 32, 32, 8, 128, 1e-5, 131072)
H100, SMALL = 80 << 30, 20 << 30


def resolve(
    monkeypatch: pytest.MonkeyPatch, memory: int, **options: object
) -> tuple[BuildConfig, list[str]]:
    monkeypatch.setattr(base, "total_memory", lambda device: memory)
    given = {"backend": "onnx", "dtype": "float16", "weight_dtype": "float16", **options}
    return resolve_build(BuildConfig.from_dict(given), LLAMA_8B)


def test_a_default_fits_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    build, reasons = resolve(monkeypatch, H100)
    assert build.max_seq_len == 32768
    assert reasons[0] == (
        "max_seq_len 32768: 8 slots of the model's 131072 tokens take 128.0 GiB of K/V, "
        "caches get 33.0 GiB"
    )
    build, reasons = resolve(monkeypatch, H100, max_batch_size=1)
    assert build.max_seq_len == 131072 and "max_position_embeddings" in reasons[0]
    build, reasons = resolve(monkeypatch, H100, backend="eager")
    assert build.max_seq_len == 131072 and "max_position_embeddings" in reasons[0]


def test_a_given_value_is_kept_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    build, reasons = resolve(monkeypatch, H100, max_seq_len=100_000)
    assert build.max_seq_len == 100_000
    assert not any("max_seq_len 1" in reason for reason in reasons)
    words = (
        r"max_seq_len=131072 takes 16.0 GiB of K/V for one sequence, the weights leave 6.0 GiB of "
        r"the device's 20.0 GiB; lower max_seq_len"
    )
    with pytest.raises(ConfigError, match=words):
        resolve(monkeypatch, SMALL, max_seq_len=131072)
    with pytest.raises(ConfigError, match=r"max_seq_len=256 .* the weights leave 0.0 GiB"):
        resolve(monkeypatch, 8 << 30)


def test_a_gpu_that_is_not_here() -> None:
    """Nothing is refused for a memory that nobody knows; a default is cautious."""
    slots = SlotLengths.of(LLAMA_8B, BuildConfig(dtype="float16", weight_dtype="float16"), None, 1)
    length, why = slots.default(131072, 8)
    assert length == 4096 and why is not None and why.endswith("of a GPU of 24 GiB")
    slots.check(131072)
    assert slots.free < ASSUMED_MEMORY


@settings(max_examples=100, deadline=None)
@given(
    free=st.integers(0, 1 << 40),
    token_bytes=st.integers(1, 1 << 20),
    slack=st.integers(2, 256),
    limit=st.integers(2, 1 << 20),
    slots=st.integers(1, 64),
)
def test_slots_of_the_default_fit(
    free: int, token_bytes: int, slack: int, limit: int, slots: int
) -> None:
    lengths = SlotLengths(free, free, token_bytes, slack)
    length, why = lengths.default(limit, slots)
    assert 2 <= length <= limit and (why is None) <= (length == limit)
    taken = slots * (length + slack) * token_bytes
    assert 2 * taken <= free or length == min(256, limit)
    if why is not None and length > 256:  # the next power of two does not fit
        assert 2 * slots * (min(2 * length, limit) + slack) * token_bytes > free
