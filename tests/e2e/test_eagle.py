"""EAGLE-1 and EAGLE-3 heads change no token, at any temperature and however prompts are fed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import SamplingParams
from trtspec.errors import RequestError
from trtspec.speculative.eagle.shape import EagleConfig

from .. import inside
from .eagle_heads import eagle, random_eagle1, random_eagle3, with_norms
from .helpers import (
    GREEDY_24,
    PARAMS_40,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    eight_prompts,
    open_llm,
    tokens,
    watch,
)
from .known_texts import KnownTexts

PROMPTS = eight_prompts(160)
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 4},
    "static": {"eagle_choices": [[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 0, 0], [2, 0, 1]]},
    "tree": {"num_speculative_tokens": 3, "topk": 4, "num_draft_tokens": 16},
}
METHODS = ("eagle", "eagle3")
CROSS = [("llama", m, s) for m in METHODS for s in SHAPES]
CROSS += [("llama", "eagle3.1", "chain"), ("qwen3", "eagle3.1", "tree")]
CROSS += [("qwen3", m, "tree") for m in METHODS]
EACH = [
    ("llama", "eagle3", "tree"),
    ("llama", "eagle3.1", "tree"),
    ("qwen3", "eagle", "static"),
    ("llama", "eagle", "chain"),
]


class Heads(KnownTexts):
    """Random heads for the tiny targets. EAGLE-3's covers the commonest tokens of the greedy texts,
    so that guesses are right now and then."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        super().__init__(models, root, PROMPTS)
        self.folder = cache(self._folder)

    def _folder(self, case: str, method: str) -> Path:
        hf, folder = self.models.hf(case), self.root / f"{case}-{method}"
        if method == "eagle":
            return random_eagle1(hf, folder)
        counts = Counter(token for text in self.greedy(case) for token in text)
        common = [token for token, _ in counts.most_common(16)]
        random_eagle3(hf, folder, common, modelopt=case == "llama")
        return with_norms(folder) if method == "eagle3.1" else folder

    def config(self, case: str, method: str, shape: str) -> dict[str, Any]:
        return eagle(self.folder(case, method), method.removesuffix(".1"), **SHAPES[shape])


@pytest.fixture(scope="module")
def heads(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Heads:
    return Heads(models, tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize(("case", "method", "shape"), CROSS)
def test_same_tokens(heads: Heads, case: str, method: str, shape: str) -> None:
    metrics = heads.assert_same(case, heads.config(case, method, shape))
    assert 1 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]


@pytest.mark.parametrize(("case", "method", "shape"), EACH)
def test_preemption(heads: Heads, case: str, method: str, shape: str) -> None:
    heads.assert_same_when_preempted(case, heads.config(case, method, shape))


@pytest.mark.parametrize(("case", "method", "shape"), EACH)
def test_prefix_reuse(heads: Heads, case: str, method: str, shape: str) -> None:
    """Blocks of a prompt and of its output are found, whatever the draft lacks of them: as a block
    whose last row was made of another next token, though the target's own was not."""
    text = heads.greedy(case)[0]
    continued = PROMPTS[0] + text[:23]
    border = continued[:32]
    diverging = [*border, (continued[32] + 1) % 200, 5]
    following = [*border, continued[32], 6]
    with open_llm(heads.models.folder(case), heads.config(case, method, shape)) as llm:
        steps = watch(llm)
        assert tokens([llm.generate(PROMPTS[0], GREEDY_24)]) == [text]
        steps.clear()
        prompts = [diverging, following, [*PROMPTS[0][:20], 9], continued]
        found = tokens(llm.generate(prompts, GREEDY_24, use_tqdm=False))
        assert found == [heads.models.greedy(case, prompt, 24) for prompt in prompts]
        # 16 tokens a block; the draft's second block ends with a row made of the token at 32.
        assert [item.start for item in steps[0].items] == [32, 32, 16, 48]
        assert_no_leak(llm)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_engine_calls_a_step(heads: Heads, method: str, shape: str) -> None:
    with open_llm(heads.models.folder("llama"), heads.config("llama", method, shape)) as llm:
        steps = watch(llm)
        llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
    pure = [step for step in steps if step.only_generates]
    assert len(pure) >= 7
    for step in pure:
        drafts = any(item.max_nodes for item in step.items)
        assert (step.target_calls, step.draft_calls) == (1, 1 if drafts else 0)
    assert sum(step.draft_calls == 0 for step in pure) <= len(PROMPTS)
    mixed = [step for step in steps if not step.only_generates]
    assert mixed
    assert all(step.target_calls == 1 and step.draft_calls in (1, 2) for step in mixed)


def test_a_prompt_of_one_token(heads: Heads) -> None:
    """Its first step has no state of the target to draft from, and emits one token, as a prefill
    does; the next one drafts."""
    with open_llm(heads.models.folder("llama"), heads.config("llama", "eagle3", "chain")) as llm:
        steps = watch(llm)
        output = llm.generate([77], SamplingParams(max_tokens=10))
        assert output.outputs[0].token_ids == heads.models.greedy("llama", [77], 10)
    assert [step.draft_calls for step in steps[:2]] == [0, 1]
    assert output.metrics.num_steps - output.metrics.num_drafts >= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_aborts_in_the_middle(heads: Heads, method: str) -> None:
    """After any step: of requests that generate, of half-fed prompts and of waiting ones."""
    config, expected = heads.config("llama", method, "tree"), heads.greedy("llama")
    limits = {"max_batch_size": 3, "max_num_tokens": 24}
    with open_llm(heads.models.folder("llama"), config, **limits) as llm:
        executor = inside.executor(llm)
        step, reasons = executor.step, []
        for moment in (1, 2, 5, 11):
            handles: list[Any] = []
            left = [moment]

            def interrupted(left: list[int] = left, handles: list[Any] = handles) -> Any:
                outputs = step()
                left[0] -= len(handles) == len(PROMPTS)
                if left[0] == 0:
                    for handle in handles[::3]:
                        handle.abort()
                return outputs

            executor.step = interrupted
            handles += [llm.generate_async(prompt, GREEDY_24) for prompt in PROMPTS]
            for i, handle in enumerate(handles):
                output = handle.result(timeout=60).outputs[0]
                reasons.append(output.finish_reason)
                if output.finish_reason == "abort":
                    assert output.token_ids == expected[i][: len(output.token_ids)]
                else:
                    assert output.token_ids == expected[i]
            assert_no_leak(llm)
        assert reasons.count("abort") >= 8


@pytest.mark.parametrize("method", METHODS)
def test_states_that_are_nan(heads: Heads, method: str) -> None:
    """A request whose logits are NaN fails alone; its neighbours' drafts read nothing of it."""
    bans = SamplingParams(bad_words=[[token] for token in range(203)])
    with open_llm(heads.models.folder("llama"), heads.config("llama", method, "tree")) as llm:
        outputs = llm.generate(PROMPTS[:3], [GREEDY_24, bans, GREEDY_24], use_tqdm=False)
        assert isinstance(outputs[1].error, RequestError)
        assert tokens(outputs[::2]) == [heads.greedy("llama")[i] for i in (0, 2)]
        assert_no_leak(llm)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(heads: Heads, method: str, dtype: str) -> None:
    folder = heads.models.folder("llama")
    with open_llm(folder, dtype=dtype) as llm:
        expected = [
            tokens(llm.generate(PROMPTS, p, use_tqdm=False)) for p in (GREEDY_24, SAMPLED_24)
        ]
    with open_llm(folder, heads.config("llama", method, "tree"), dtype=dtype) as llm:
        for params, texts in zip((GREEDY_24, SAMPLED_24), expected, strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == texts
        assert llm.get_metrics()["num_accepted_tokens"] > 0


def test_formats_are_read_alike(heads: Heads, tmp_path: Path) -> None:
    """The same head in ModelOpt's and in yuhuili's format drafts the same."""
    hf, figures = heads.models.hf("llama"), []
    for modelopt in (True, False):
        folder = random_eagle3(hf, tmp_path / str(modelopt), range(5, 60), modelopt)
        with open_llm(
            heads.models.folder("llama"), eagle(folder, "eagle3", **SHAPES["tree"])
        ) as llm:
            draft = llm.config.drafts[0].network
            assert isinstance(draft, EagleConfig) and draft.capture_layers == (0, 1)
            outputs = llm.generate(PROMPTS, SAMPLED_24, use_tqdm=False)
            assert tokens(outputs) == heads.sampled("llama")
            figures.append([output.metrics.to_dict() for output in outputs])
    assert figures[0] == figures[1]
