"""Layers with states in 8 and 4 bits: a checkpoint's bits are kept, floats are rounded, and drafts
change nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import SamplingParams
from trtspec.builder.accuracy import log_probabilities
from trtspec.formats.quantised import QuantisedFormat
from trtspec.models.linear import Linear

from ..checkpoints import quantised_layers
from ..checkpoints.quantised_layers import CASES
from .families import VOCAB, family_model
from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens
from .quantised_folder import quantised
from .test_kept_weights import KEPT, loaded

HYBRIDS = ("granite_hybrid", "qwen3_5")
IDS = torch.tensor(random_prompt(5, 40, VOCAB))
PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]
PARAMS = [SamplingParams(16), SamplingParams(16, temperature=0.9, seed=3)]


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size that there are kernels for."""
    monkeypatch.setattr(quantised_layers, "GROUP", 16)


@pytest.fixture
def families(tmp_path: Path) -> TinyModels:
    models = TinyModels(tmp_path)
    models.hf = cache(family_model)
    return models


def texts(folder: Path, speculation: Any = None, **options: Any) -> list[list[list[int]]]:
    with open_llm(folder, speculation, **options) as llm:
        found = [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in PARAMS]
        assert_no_leak(llm)
    return found


@pytest.mark.parametrize("scheme", ["modelopt-int8", "pack-quantized"])
@pytest.mark.parametrize("case", HYBRIDS)
def test_bits_are_kept(families: TinyModels, tmp_path: Path, case: str, scheme: str) -> None:
    path, floats = quantised(families.folder(case), CASES[scheme], tmp_path)
    model = loaded(path, **KEPT)
    mixers = [layer.attn for layer in model.layers if hasattr(layer.attn, "replay")]
    kept = [
        isinstance(layer.format, QuantisedFormat)
        for mixer in mixers
        for layer in mixer.modules()
        if isinstance(layer, Linear)
    ]
    assert sum(kept) >= 2 * len(mixers) > 0  # what goes in, and what comes out
    exact = log_probabilities(loaded(floats), IDS)
    torch.testing.assert_close(log_probabilities(model, IDS), exact, rtol=0, atol=2e-4)
    expected = texts(path, max_batch_size=1)
    assert texts(path, ngram(4), max_num_tokens=24) == expected


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("case", HYBRIDS)
def test_floats_are_rounded(families: TinyModels, case: str, weights: str) -> None:
    folder = families.folder(case)
    expected = texts(folder, max_batch_size=1, weight_dtype=weights)
    assert texts(folder, ngram(4), max_num_tokens=24, weight_dtype=weights) == expected
