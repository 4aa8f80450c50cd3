"""What rounding costs a target, or a draft, that is split: told as of a whole one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trtspec import build
from trtspec.builder.locate import CACHE_VARIABLE

from ..e2e.helpers import TinyModels, chain

OPTIONS: dict[str, Any] = {
    "backend": "eager",
    "dtype": "float32",
    "weight_dtype": "int4",
    "weight_group_size": 16,
    "activation_dtype": "float32",
    "kv_cache_config": {"dtype": "int8"},
    "skip_tokenizer_init": True,
}


def test_costs_are_those_of_the_whole(
    models: TinyModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Groups of weights and heads of K/V are the same, so divergences and roundings are."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    caplog.set_level("INFO", logger="trtspec")
    rounded = ("weight_dtype", "weight_group_size", "activation_dtype")
    drafts = chain(models.draft("llama"), 2) | {name: OPTIONS[name] for name in rounded}
    said = []
    for ranks in (1, 2):
        caplog.clear()
        asked = {**drafts, "draft_tensor_parallel_size": ranks}
        folder = tmp_path / f"engine{ranks}"
        build(models.folder("llama"), asked, folder, tensor_parallel_size=ranks, **OPTIONS)
        costs = (re.search(r"(KL divergence|off by) ([\d.e-]+)", m) for m in caplog.messages)
        said.append([(cost[1], float(cost[2])) for cost in costs if cost])
    whole, of_ranks = said
    assert [what for what, _ in whole].count("KL divergence") == 3
    assert [what for what, _ in of_ranks] == [what for what, _ in whole]
    # Sums in another order round some keys and values otherwise.
    assert [x for _, x in of_ranks] == pytest.approx([x for _, x in whole], rel=0.1)
