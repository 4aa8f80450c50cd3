"""Backend onnx gives the text of the eager modules, and drafts and accepts what they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from .every_method import METHODS, NOT_ON_ONNX, PROMPTS, SELDOM_ON_ONNX
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    open_llm,
    tokens,
    watch,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow

# Cached prefixes, which slot caches have none of, would change what a step has room to draft.
OPTIONS = {
    "max_batch_size": 8,
    "max_num_tokens": 80,
    "kv_cache_config": {"enable_block_reuse": False},
}


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=pytest.mark.matrix if method in SELDOM_ON_ONNX else ())
        for method in METHODS
        if method not in NOT_ON_ONNX
    ],
)
def test_same_tokens(models: TinyModels, tmp_path: Path, method: str) -> None:
    """Eight requests at once in chunks, then one alone; the drafts are the same as well, so a
    draft's caches and the states that it reads are right."""
    folder, speculation = METHODS[method](models, tmp_path)
    texts, figures = [], []
    for backend in ("eager", "onnx"):
        with open_llm(folder, speculation, backend=backend, **OPTIONS) as llm:
            steps = watch(llm)
            found = tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False))
            found += tokens(llm.generate(PROMPTS, SAMPLED_24, use_tqdm=False))
            prefills = [item for step in steps for item in step.items if not item.is_generation]
            assert any(not item.samples for item in prefills), "no prompt was cut"
            found += tokens([llm.generate(PROMPTS[0], SAMPLED_24[0])])
            metrics = llm.get_metrics()
            assert_no_leak(llm)
        texts.append(found)
        figures.append([metrics["num_draft_tokens"], metrics["num_accepted_tokens"]])
    assert texts[0] == texts[1]
    assert figures[0] == figures[1]
    assert speculation is None or 0 < figures[0][1] < figures[0][0]
