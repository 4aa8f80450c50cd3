"""What outputs and `get_metrics` say of queues, preemptions, the prefix cache and the rule."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.errors import EngineError, RequestError

from ..e2e.helpers import ngram
from .conftest import TextModel

PROMPT = list(range(60, 110))
PARAMS = SamplingParams(max_tokens=60, ignore_eos=True)


def figures(llm: LLM) -> dict[str, Any]:
    names = ("num_preemptions", "num_prefix_cache_queries", "num_prefix_cache_hits")
    return {name.removeprefix("num_"): llm.get_metrics()[name] for name in names}


def test_preemptions_and_the_prefix_cache(text_model: TextModel) -> None:
    """A cache for one and a half requests: the second loses its blocks and is computed again, which
    is no query of the prefix cache."""
    options = {"kv_cache_config": {"max_tokens": 160}, "max_batch_size": 2}
    with text_model.open(tokens_per_block=16, **options) as llm:
        assert figures(llm) == {
            "preemptions": 0, "prefix_cache_queries": 0, "prefix_cache_hits": 0
        }  # fmt: skip
        llm.generate(PROMPT, SamplingParams(max_tokens=1))
        assert figures(llm)["prefix_cache_queries"] == 50
        outputs = llm.generate([PROMPT, PROMPT[::-1]], PARAMS, use_tqdm=False)
        after = figures(llm)
        assert after["preemptions"] >= 1
        # The last token of a prompt is always computed, so 3 of its 4 blocks can be found.
        assert (after["prefix_cache_queries"], after["prefix_cache_hits"]) == (150, 48)
        assert all(o.outputs[0].queue_time is not None for o in outputs)


def test_no_queries_where_prefixes_are_not_reused(text_model: TextModel) -> None:
    with text_model.open(kv_cache_config={"enable_block_reuse": False}) as llm:
        for _ in range(2):
            llm.generate(PROMPT, SamplingParams(max_tokens=1))
        assert figures(llm)["prefix_cache_queries"] == figures(llm)["prefix_cache_hits"] == 0


def test_the_queue_time(text_model: TextModel) -> None:
    """The second of a batch of one waits for the whole of the first; who never ran has none."""
    with text_model.open(max_batch_size=1) as llm:
        first, second, third = llm.submit([PROMPT] * 3, PARAMS)
        third.abort()
        waits = [handle.result(60).outputs[0].queue_time for handle in (first, second, third)]
        assert waits[0] is not None and waits[1] is not None and waits[2] is None
        end = first.output.outputs[0].finish_time
        begun = second.output.outputs[0].first_token_time
        assert end is not None and begun is not None and 0 <= waits[0] < waits[1]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rates", [None, [0.5, 0.5]])
def test_simulated_outputs_say_so(
    text_model: TextModel, temperature: float, rates: list[float] | None
) -> None:
    config = ngram(2) if rates is None else ngram(2, simulate_acceptance=rates)
    params = SamplingParams(max_tokens=8, temperature=temperature, seed=1, n=2)
    with LLM(text_model.folder, config, backend="eager", dtype="float32") as llm:
        wanted = "lossless" if rates is None else "simulated"
        handle = llm.generate_async("the cat", params, streaming=True)
        assert {output.acceptance for output in handle} == {wanted}
        failed, served = llm.generate(["", "the cat"], params, use_tqdm=False)
        assert failed.error is not None and failed.acceptance == served.acceptance == wanted


def test_snapshots_have_the_steps_of_their_tokens(text_model: TextModel) -> None:
    params = SamplingParams(max_tokens=20, n=2, temperature=0.8, seed=1, return_spec_steps=True)
    with text_model.open("tree") as llm:
        snapshots = [*llm.generate_async("the cat", params, streaming=True)]
        (without,) = llm.generate(["the cat"], SamplingParams(max_tokens=4), use_tqdm=False)
    assert without.outputs[0].spec_steps is None
    for output in snapshots:
        for completion in output.outputs:
            steps = completion.spec_steps or []
            assert [t for step in steps for t in step.emitted] == completion.token_ids
    for completion in snapshots[-1].outputs:
        steps = (completion.spec_steps or [])[1:]  # the first token is the prompt's
        assert len(steps) == completion.metrics.num_steps
        assert sum(len(step.tokens) for step in steps) == completion.metrics.num_draft_tokens


def test_failed_steps_are_counted(text_model: TextModel) -> None:
    """Those that failed as a whole: a request that cannot be served is none, and a good step ends
    the row."""
    with text_model.open() as llm:
        forward = llm._runtime.target.forward

        def broken(*args: Any) -> Any:
            raise RuntimeError("bad kernel")

        llm._runtime.target.forward = broken  # type: ignore[method-assign]
        for number in range(1, 4):
            with pytest.raises(EngineError, match="bad kernel"):
                llm.generate("a")
            load = llm.load()
            assert load.num_failed_steps_in_a_row == number
            assert load.last_failure is not None and "bad kernel" in load.last_failure
        llm._runtime.target.forward = forward  # type: ignore[method-assign]
        with pytest.raises(RequestError, match="every token excluded"):
            llm.generate("a", SamplingParams(bad_words=[[token] for token in range(300)]))
        assert llm.load().num_failed_steps_in_a_row == 0
        assert llm.get_metrics()["num_failed_steps"] == 3
