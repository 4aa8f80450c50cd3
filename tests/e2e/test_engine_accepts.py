"""A target that accepts in its engine gives the text of one whose logits the sampler verifies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import trtspec.executor.step.sampler as verifies
from trtspec import LLM

from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    eight_prompts,
    ngram,
    open_llm,
    tokens,
    tree,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from ..backends.plugin_graph import HOW

pytestmark = pytest.mark.slow

PROMPTS = eight_prompts(810)
OPTIONS = {"max_batch_size": 8, "max_num_tokens": 80}
IN_GRAPHS = {
    "plugins": [{"TreeMask", "KeyedSample", "TreeAccept"}],
    "kernels": [],
    "paged": [{"PagedTreeAttention", "KeyedSample", "TreeAccept"}, {"PagedTreeAttention"}],
}
"""The plugins of each graph that has some."""
Pair = tuple[LLM, LLM]


@pytest.fixture(scope="module", params=["plugins", "kernels", "paged"])
def pair(request: pytest.FixtureRequest, models: TinyModels) -> Iterator[Pair]:
    """An eager one, and one that accepts in its engine, by plugins or by kernels beside it, or that
    attends by plugins as well."""
    case, speculation = "mistral_window", ngram(4)
    if request.param != "plugins":
        case, speculation = "llama", tree(models.draft("llama"), 3, 3, 10)
    folder = models.folder(case)
    # Slots share no prefixes.
    options: Any = {**OPTIONS, "kv_cache_config": {"enable_block_reuse": request.param == "paged"}}
    with pytest.MonkeyPatch.context() as patch:
        eager = open_llm(folder, speculation, **options)
        sessions = HOW[request.param](patch)
        # Padded to buckets, as steps on CUDA are.
        accepting = open_llm(folder, speculation, backend="onnx", cuda_graph_config=True, **options)
        yield eager, accepting
        found = [session.plugins for session in sessions]
        assert found == IN_GRAPHS[request.param]
    for llm in (eager, accepting):
        assert_no_leak(llm)
        llm.shutdown()


def refuse(*tensors: Any) -> Any:
    raise AssertionError("the host verifies what the engine has verified")


@pytest.mark.parametrize("params", [[GREEDY_24] * 8, SAMPLED_24], ids=["greedy", "sampled"])
def test_the_text_is_the_same(
    pair: Pair, params: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, accepting = pair
    expected = tokens(eager.generate(PROMPTS, params))
    for name in ("sample", "accept"):
        monkeypatch.setattr(verifies, name, refuse)
    assert tokens(accepting.generate(PROMPTS, params)) == expected
    figures = [llm.get_metrics()["num_accepted_tokens"] for llm in pair]
    assert figures[0] == figures[1] > 0


def test_options_that_change_logits_are_judged_on_the_host(pair: Pair) -> None:
    """Penalties beside requests without; logprobs, which are of the engine's own logits."""
    params = [
        replace(each, logprobs=2, repetition_penalty=1.3 if i % 2 else 1.0)
        for i, each in enumerate(SAMPLED_24)
    ]
    expected, found = (llm.generate(PROMPTS, params) for llm in pair)
    assert tokens(found) == tokens(expected)
    plain = [replace(each, logprobs=2) for each in SAMPLED_24]
    outputs = [llm.generate(PROMPTS, plain) for llm in pair]
    for one, other in zip(*outputs, strict=True):
        logprobs = [output.outputs[0].logprobs for output in (one, other)]
        assert all(logprobs)
        for mine, theirs in zip(*logprobs, strict=True):
            assert mine.token == theirs.token and mine.top.keys() == theirs.top.keys()
