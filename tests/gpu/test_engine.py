"""Whole engines on a CUDA device: the tokens of the CPU in float32, with graphs and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import trtspec.executor.step.sampler as sampler
from trtspec import LLM, SamplingParams
from trtspec.backends.cuda_graph import CudaGraphSession
from trtspec.backends.device import compute_capability, device_problem
from trtspec.backends.verifying import VerifyingSession
from trtspec.formats.plain import FewRowFormat
from trtspec.formats.tiled import TiledFormat
from trtspec.models.linear import Linear

from .. import inside
from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import (
    TinyModels,
    assert_engine_calls,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
)
from ..e2e.hybrid_drafts import hybrid

_PROBLEM = device_problem("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_PROBLEM is not None, reason=f"no engine runs on CUDA here: {_PROBLEM}"),
]

PROMPTS = [random_prompt(400, 30), [77], random_prompt(401, 6) * 4, random_prompt(402, 17)]
GREEDY = [SamplingParams(max_tokens=32)] * 4
SAMPLED = [SamplingParams(32, temperature=0.8, seed=seed) for seed in range(4)]
PENALISED = [
    SamplingParams(
        32,
        temperature=0.7,
        seed=seed,
        repetition_penalty=1.2,
        top_p=0.9,
        logit_bias={3: 2.0},
        bad_words=[[5], [6, 7]],
        min_tokens=4,
    )
    for seed in range(4)
]
RUNS = (GREEDY, SAMPLED, PENALISED)
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 64}
METHODS = ("none", "ngram", "chain", "tree", "eagle3")


def make_head(models: TinyModels, folder: Path) -> Path:
    return random_eagle3(models.hf("llama"), folder, range(10, 34))


@pytest.fixture(scope="module")
def head(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_head(models, tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def expected(models: TinyModels) -> list[list[list[int]]]:
    return texts_of_the_cpu(models)


def texts_of_the_cpu(models: TinyModels) -> list[list[list[int]]]:
    """Without speculation."""
    with open_llm(models.folder("llama"), **LIMITS) as llm:
        return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


def config_of(method: str, models: TinyModels, head: Path) -> Any:
    draft = models.draft("llama")
    configs = {
        "none": None,
        "ngram": ngram(4),
        "chain": chain(draft, 3),
        "tree": tree(draft, 2, 3, 6),
        "eagle3": eagle(head, "eagle3", num_speculative_tokens=3, topk=2, num_draft_tokens=6),
    }
    configs["hybrid"] = hybrid(configs["ngram"], configs["tree"], configs["eagle3"])
    return configs[method]


def open_gpu(models: TinyModels, config: Any, **options: Any) -> LLM:
    return open_llm(models.folder("llama"), config, device="cuda", **{**LIMITS, **options})


def graph_sessions(llm: LLM) -> list[CudaGraphSession]:
    engines: list[Any] = [inside.target(llm), *inside.drafts(llm)]
    sessions = [session for engine in engines for session in inside.sessions(engine)]
    return [session for session in sessions if isinstance(session, CudaGraphSession)]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no_graphs"])
@pytest.mark.parametrize("method", [*METHODS, "hybrid"])
def test_eager_modules(
    models: TinyModels, head: Path, expected: Any, method: str, graphs: bool
) -> None:
    config = config_of(method, models, head)
    with open_gpu(models, config, cuda_graph_config=graphs) as llm:
        for params, texts in zip(RUNS, expected, strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == texts
        assert_no_leak(llm)
        sessions = graph_sessions(llm)
        num_drafts = {"none": 0, "ngram": 0, "hybrid": 2}.get(method, 1)
        # The target's, and of each draft the rollout and that of one step.
        assert len(sessions) == graphs * (1 + 2 * num_drafts)
        assert all(session.num_graphs == len(session._sizes) > 0 for session in sessions)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no_graphs"])
@pytest.mark.parametrize("method", ["none", "eagle3"])
def test_steps_ahead(
    models: TinyModels, head: Path, expected: Any, method: str, graphs: bool
) -> None:
    """Steps on the device alone, in the last run with some on the host between them."""
    config = config_of(method, models, head)
    with open_gpu(models, config, cuda_graph_config=graphs, steps_ahead=1) as llm:
        for params, texts in zip(RUNS, expected, strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == texts
        assert_no_leak(llm)
        assert (len(inside.step_graphs(llm)) > 0) == graphs


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_compiled(models: TinyModels, head: Path, expected: Any, method: str) -> None:
    """Graphs on, off, and without padding: the same texts."""
    config = config_of(method, models, head)
    for graphs in (True, False, {"enable_padding": False}):
        with open_gpu(models, config, backend="aoti", cuda_graph_config=graphs) as llm:
            for params, texts in zip(RUNS, expected, strict=True):
                assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == texts
            if method != "ngram":  # which drafts without an engine
                assert_engine_calls(llm, PROMPTS)
            metrics = llm.get_metrics()
            assert metrics["target_ms"] > 0
            assert (metrics["num_accepted_tokens"] > 0) == (method != "none")
            assert llm.config.environment.compute_capability == compute_capability()
            assert inside.target(llm).caches.all[0].is_cuda
            assert all("packed" not in name for name in weight_names(llm))
            assert_no_leak(llm)


def weight_names(llm: LLM) -> list[str]:
    return list(innermost(llm)._weights)


def innermost(llm: LLM) -> Any:
    """The target's own session, in those that capture and verify."""
    session: Any = inside.session(inside.target(llm))
    while isinstance(session, CudaGraphSession | VerifyingSession):
        session = session._session
    return session


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no_graphs"])
def test_verdicts_come_with_the_call(
    models: TinyModels, expected: Any, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No op of the sampler's own runs where options leave the logits as they are."""

    def refuse(*given: Any) -> Any:
        raise AssertionError("what the call has verified is verified once more")

    with open_gpu(models, tree(models.draft("llama"), 2, 3, 6), cuda_graph_config=graphs) as llm:
        for name in ("sample", "accept"):
            monkeypatch.setattr(sampler, name, refuse)
        for params, texts in zip((GREEDY, SAMPLED), expected, strict=False):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == texts
        assert llm.get_metrics()["num_accepted_tokens"] > 0


def test_requests_come_and_go(models: TinyModels, head: Path) -> None:
    """Batches of every size up to the largest, replayed in any order, keep the texts apart."""
    config = config_of("eagle3", models, head)
    prompts = [random_prompt(420 + i, 3 + i) for i in range(12)]
    params = [SamplingParams(5 + 3 * i, temperature=0.8 * (i % 2), seed=i) for i in range(12)]
    with open_llm(models.folder("llama"), config, **LIMITS) as cpu:
        texts = tokens(cpu.generate(prompts, params, use_tqdm=False))
    with open_gpu(models, config) as gpu:
        for _ in range(2):
            assert tokens(gpu.generate(prompts, params, use_tqdm=False)) == texts


def test_logprobs_are_those_of_the_cpu(models: TinyModels) -> None:
    params = SamplingParams(8, logprobs=3)
    found = []
    for device in ("cpu", "cuda"):
        with open_llm(models.folder("llama"), ngram(3), device=device) as llm:
            found.append(llm.generate(PROMPTS[0], params).outputs[0].logprobs)
    for one, other in zip(*found, strict=True):
        assert one.token == other.token and one.top.keys() == other.top.keys()
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_bfloat16_logits_are_not_rounded(models: TinyModels) -> None:
    """A head of 16-bit weights gives float32 logits that 16 bits cannot hold."""
    with open_gpu(models, None, dtype="bfloat16") as llm:
        module = innermost(llm)._module
        hidden = torch.randn(5, llm.config.target.hidden_size, device="cuda").bfloat16()
        logits = module.head(hidden)
        assert logits.dtype == torch.float32
        assert not torch.equal(logits, logits.bfloat16().float())


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_few_row_products(models: TinyModels, weights: str) -> None:
    """By kernels of trtspec, of floats and of weights that are kept quantised."""
    options = {"dtype": "bfloat16", "few_row_products": True, "weight_dtype": weights}
    with open_gpu(models, ngram(4), **options) as llm:
        texts = tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
        assert all(len(text) == 32 for text in texts)
        assert_no_leak(llm)
        layers = [m for m in innermost(llm)._module.modules() if isinstance(m, Linear)]
        kind = FewRowFormat if weights == "auto" else TiledFormat
        assert {type(layer.format) for layer in layers} == {kind}
        for layer, rows in zip(layers, (1, 64, 65) * len(layers), strict=False):
            on_cpu = {name: buffer.cpu() for name, buffer in layer.weights.items()}
            exact = layer.format.dequantised(on_cpu, layer.out_features, layer.in_features)
            x = torch.randn(rows, layer.in_features).bfloat16()
            found = layer(x.cuda(), torch.float32).cpu()
            torch.testing.assert_close(found, x.float() @ exact.T, rtol=1e-2, atol=1e-2)
