"""Whole engines over staged inputs and captured calls, faked on the CPU: the texts stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import trtspec.backends.cuda_graph as cuda_graph
import trtspec.executor.engines.counted_engine as counted_engine
import trtspec.executor.step.sampler as sampler
import trtspec.llmapi.runtime as runtime
from trtspec import SamplingParams
from trtspec.backends.eager import EagerBackend
from trtspec.backends.session import Session
from trtspec.backends.staging import Staging
from trtspec.engine.folder import EngineConfig

from .. import inside
from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import (
    TinyModels,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
)
from ..e2e.hybrid_drafts import hybrid

LENGTHS = (24, 9, 17, 6, 20)
GREEDY = [SamplingParams(length) for length in LENGTHS]
SAMPLED = [
    SamplingParams(length, temperature=0.8, seed=i, logprobs=1, repetition_penalty=1.1)
    for i, length in enumerate(LENGTHS)
]
VERIFIED = [replace(params, repetition_penalty=1.0) for params in SAMPLED]
RUNS = (GREEDY, VERIFIED, SAMPLED)


class FakeGraph:
    """A graph as CUDA's: fixed inputs and outputs, and nothing is known of them between replays."""

    def __init__(self, call: Callable[[], list[Tensor]]) -> None:
        self.call = call
        self.outputs = [output.clone() for output in call()]
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for own, new in zip(self.outputs, self.call(), strict=True):
            own.copy_(new)


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    """The graphs that were captured; all engines opened now have them and staged inputs."""
    graphs: list[FakeGraph] = []

    def record(call: Callable[[], list[Tensor]], pool: Any) -> Any:
        graphs.append(FakeGraph(call))
        return graphs[-1], graphs[-1].outputs, "pool"

    staging = partial(Staging, always=True)
    with_graphs, capture = runtime._with_graphs, runtime._capture_graphs
    open_plainly = runtime._draft_engine

    def open_draft(*arguments: Any) -> Any:
        engine = open_plainly(*arguments)
        capture([engine], arguments[-1])
        return engine

    def on_cuda(session: Session, engine: EngineConfig, *rest: Any) -> Session:
        build = replace(engine.build, device="cuda")
        return with_graphs(session, replace(engine, build=build), *rest)

    monkeypatch.setattr(cuda_graph, "record", record)
    monkeypatch.setattr(counted_engine, "Staging", staging)
    monkeypatch.setattr(sampler, "Staging", staging)
    monkeypatch.setattr(runtime, "_with_graphs", on_cuda)
    monkeypatch.setattr(runtime, "_draft_engine", open_draft)
    return graphs


@pytest.fixture(scope="module")
def head(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_eagle3(models.hf("llama"), tmp_path_factory.mktemp("head"), range(10, 34))


@pytest.mark.parametrize("padding", [True, False], ids=["padded", "exact"])
@pytest.mark.parametrize("method", ["none", "ngram", "chain", "tree", "eagle3", "hybrid"])
def test_texts(
    models: TinyModels,
    head: Path,
    fake_graphs: list[FakeGraph],
    method: str,
    padding: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside.draft_in_one_call(monkeypatch)
    draft = models.draft("llama")
    configs: dict[str, Any] = {
        "none": None,
        "ngram": ngram(4),
        "chain": chain(draft, 3),
        "tree": tree(draft, 2, 3, 6),
        "eagle3": eagle(head, "eagle3", num_speculative_tokens=3, topk=2, num_draft_tokens=6),
    }
    configs["hybrid"] = hybrid(configs["ngram"], configs["tree"], configs["eagle3"])
    config = configs[method]
    prompts = [random_prompt(600 + i, 4 + 7 * i) for i in range(len(LENGTHS))]
    options: dict[str, Any] = {"max_batch_size": 5}
    graphs = {"enable_padding": padding}
    with open_llm(models.folder("llama"), **options) as plain:
        expected = [plain.generate(prompts, params, use_tqdm=False) for params in RUNS]
    monkeypatch.setattr(EagerBackend, "verifies", lambda self, engine: True)
    with open_llm(models.folder("llama"), config, cuda_graph_config=graphs, **options) as llm:
        for params, outputs in zip(RUNS, expected, strict=True):
            found = llm.generate(prompts, params, use_tqdm=False)
            assert tokens(found) == tokens(outputs)
            for one, other in zip(found, outputs, strict=True):
                assert one.outputs[0].logprobs == other.outputs[0].logprobs
        assert_no_leak(llm)
        sessions = [
            inside.session(inside.target(llm)),
            *(inside.rollout(draft) for draft in inside.drafts(llm)),
        ]
        assert all(isinstance(session, cuda_graph.CudaGraphSession) for session in sessions)
    if padding:  # trees are seldom all full
        assert sum(graph.replays for graph in fake_graphs) > 20
    if padding and inside.drafts(llm):
        # The rollout's were captured when the engine was opened: batches of 1, 2, 4 and 5.
        assert all(session.num_graphs == 4 for session in sessions[1:])
