"""Engines whose weights are not packed, as those for CUDA are, run on the CPU: the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.backends.aoti.compile import compile_graph
from trtspec.backends.shape import WEIGHTS_NAME
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig, read_weights
from trtspec.engine.graphs import engine_graphs
from trtspec.formats.registry import IN_ROWS
from trtspec.speculative.options import parse_speculative_config

from ..e2e.eagle_heads import eagle, random_eagle1, random_eagle3
from ..e2e.helpers import TinyModels, open_llm, random_prompt, tokens, tree

PROMPTS = [random_prompt(500, 20), [5], random_prompt(501, 9)]
PARAMS = [SamplingParams(16), *(SamplingParams(16, temperature=0.8, seed=i) for i in range(2))]


@pytest.mark.parametrize(
    ("case", "method", "backend"),
    [
        ("llama3_tied", "tree", "eager"),
        ("llama", "eagle3", "eager"),
        ("llama", "eagle", "eager"),
        # One that borrows embedding and head is compiled; what else is borrowed is no other code.
        pytest.param("llama", "eagle", "aoti", marks=pytest.mark.matrix),
    ],
)
def test_texts(
    models: TinyModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    method: str,
    backend: str,
) -> None:
    """Tied and borrowed embeddings, a head of its own, the target's head."""
    shape: dict[str, Any] = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
    if backend == "aoti":  # its rollout is the draft's one graph
        shape = {"num_speculative_tokens": 1, "topk": 2, "num_draft_tokens": 3}
    if method == "tree":
        speculation: Any = tree(models.draft(case), 2, 3, 6)
    elif method == "eagle3":
        head = random_eagle3(models.hf(case), tmp_path / "head", range(10, 34))
        speculation = eagle(head, method, **shape)
    else:
        speculation = eagle(random_eagle1(models.hf(case), tmp_path / "head"), method, **shape)
    build = BuildConfig("float32", backend=backend)
    plan = plan_build(models.folder(case), build, parse_speculative_config(speculation))
    with open_llm(models.folder(case)) as packed:
        expected = tokens(packed.generate(PROMPTS, PARAMS, use_tqdm=False))

    monkeypatch.setattr(EngineConfig, "formats_of", lambda engine, draft=None: IN_ROWS)
    monkeypatch.setenv(
        "TRTSPEC_CACHE_DIR", str(tmp_path / "cache")
    )  # packed weights are kept there
    if backend == "aoti":
        compile_here(monkeypatch)
    folder = build_engine(plan, tmp_path / "engine")
    stored = read_weights(folder / "target" / WEIGHTS_NAME)
    assert not any("packed" in name for name in stored)
    assert stored["lm_head.weight"].shape[0] == plan.engine.target.vocab_size
    with LLM(folder, skip_tokenizer_init=True) as llm:
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected
        assert llm.get_metrics()["num_draft_calls"] > 0


def compile_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in this process, where the layout is patched, and past the cache."""

    def place(engine: Any, names: Any, folder: Path) -> None:
        for name in names:
            compile_graph(engine_graphs(engine)[name], folder / name, engine.build.device)

    monkeypatch.setattr("trtspec.builder.build_engine.place_graphs", place)
