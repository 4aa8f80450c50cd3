"""Medusa heads change no token, at any temperature and however prompts are fed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import SamplingParams, build
from trtspec.errors import ConfigError, RequestError
from trtspec.speculative.medusa.shape import MedusaConfig

from .. import inside
from .eagle_heads import eagle, random_eagle1
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
from .medusa_heads import fitted_heads, medusa, write_heads

PROMPTS = eight_prompts(260)
SHAPES: dict[str, dict[str, Any]] = {
    "default": {},
    "chain": {"topk": 1},
    "choices": {"medusa_choices": [[0], [2], [0, 0], [2, 1], [2, 1, 0]]},
    "dynamic": {"topk": 4, "num_draft_tokens": 16},
}
CROSS = [("llama", shape) for shape in SHAPES]
CROSS += [("qwen3", "default"), ("llama3_tied", "dynamic")]


class Folders(KnownTexts):
    """Heads that often guess the greedy texts."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        super().__init__(models, root, PROMPTS)
        self.folder = cache(self._folder)

    def _folder(self, case: str) -> Path:
        hf = self.models.hf(case)
        texts = [p + t for p, t in zip(PROMPTS, self.greedy(case), strict=True)]
        return write_heads(self.root / case, fitted_heads(hf, texts, 3))

    def config(self, case: str, shape: str, **more: Any) -> dict[str, Any]:
        return medusa(self.folder(case), **SHAPES[shape], **more)


@pytest.fixture(scope="module")
def heads(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(models, tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize(("case", "shape"), CROSS)
def test_same_tokens(heads: Folders, case: str, shape: str) -> None:
    metrics = heads.assert_same(case, heads.config(case, shape))
    assert 20 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]


@pytest.mark.parametrize("shape", ["default", "dynamic"])
def test_preemption(heads: Folders, shape: str) -> None:
    heads.assert_same_when_preempted("llama", heads.config("llama", shape))


def test_every_prefix_is_reused(heads: Folders) -> None:
    """There is no draft cache that could lack what the target's holds."""
    text = heads.greedy("llama")[0]
    continued = PROMPTS[0] + text[:23]
    diverging = [*continued[:32], (continued[32] + 1) % 200, 5]
    with open_llm(heads.models.folder("llama"), heads.config("llama", "default")) as llm:
        steps = watch(llm)
        assert tokens([llm.generate(PROMPTS[0], GREEDY_24)]) == [text]
        steps.clear()
        prompts = [diverging, [*PROMPTS[0][:20], 9], continued]
        found = tokens(llm.generate(prompts, GREEDY_24, use_tqdm=False))
        assert found == [heads.models.greedy("llama", prompt, 24) for prompt in prompts]
        assert [item.start for item in steps[0].items] == [32, 16, 48]
        assert inside.resources(llm).drafts == ()
        assert_no_leak(llm)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_engine_calls_a_step(heads: Folders, shape: str) -> None:
    """And one in a step that feeds prompts: the heads keep nothing of them."""
    with open_llm(heads.models.folder("llama"), heads.config("llama", shape)) as llm:
        steps = watch(llm)
        llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
    pure = [step for step in steps if step.only_generates]
    assert len(pure) >= 7
    for step in pure:
        drafts = any(item.max_nodes for item in step.items)
        assert (step.target_calls, step.draft_calls) == (1, 1 if drafts else 0)
    assert sum(step.draft_calls == 0 for step in pure) <= len(PROMPTS)
    mixed = [step for step in steps if not step.only_generates]
    assert mixed and all(step.target_calls == 1 and step.draft_calls <= 1 for step in mixed)


def test_a_prompt_of_one_token(heads: Folders) -> None:
    """Its first step has no state of the target to draft from; the next one drafts."""
    with open_llm(heads.models.folder("llama"), heads.config("llama", "chain")) as llm:
        steps = watch(llm)
        output = llm.generate([77], SamplingParams(max_tokens=10))
        assert output.outputs[0].token_ids == heads.models.greedy("llama", [77], 10)
    assert [step.draft_calls for step in steps[:2]] == [0, 1]


def test_states_that_are_nan(heads: Folders) -> None:
    """A request whose logits are NaN fails alone."""
    bans = SamplingParams(bad_words=[[token] for token in range(203)])
    with open_llm(heads.models.folder("llama"), heads.config("llama", "default")) as llm:
        outputs = llm.generate(PROMPTS[:3], [GREEDY_24, bans, GREEDY_24], use_tqdm=False)
        assert isinstance(outputs[1].error, RequestError)
        assert tokens(outputs[::2]) == [heads.greedy("llama")[i] for i in (0, 2)]
        assert_no_leak(llm)
        assert not inside.drafter(llm).live_requests


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(heads: Folders, dtype: str) -> None:
    folder = heads.models.folder("llama")
    with open_llm(folder, dtype=dtype) as llm:
        expected = [
            tokens(llm.generate(PROMPTS, p, use_tqdm=False)) for p in (GREEDY_24, SAMPLED_24)
        ]
    with open_llm(folder, heads.config("llama", "default"), dtype=dtype) as llm:
        for params, texts in zip((GREEDY_24, SAMPLED_24), expected, strict=True):
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == texts
        assert llm.get_metrics()["num_accepted_tokens"] > 0


def test_formats_draft_alike(heads: Folders, tmp_path: Path) -> None:
    """The same heads as FasterDecoding's file and inside ModelOpt's model."""
    hf, figures = heads.models.hf("llama"), []
    fitted = fitted_heads(
        hf, [p + t for p, t in zip(PROMPTS, heads.greedy("llama"), strict=True)], 3
    )
    for name, model in (("faster", None), ("modelopt", hf)):
        folder = write_heads(tmp_path / name, fitted, model)
        with open_llm(heads.models.folder("llama"), medusa(folder)) as llm:
            assert llm.config.drafts[0].network == MedusaConfig(3, 1, 64, 203, (2,))
            outputs = llm.generate(PROMPTS, SAMPLED_24, use_tqdm=False)
            assert tokens(outputs) == heads.sampled("llama")
            figures.append([output.metrics.to_dict() for output in outputs])
    assert figures[0] == figures[1]


def test_only_the_heads_in_use_are_stored(heads: Folders) -> None:
    config = medusa(heads.folder("llama"), heads=2)
    with open_llm(heads.models.folder("llama"), config) as llm:
        (draft,) = llm.config.drafts
        assert draft.network.num_heads == draft.speculation.num_steps == 2
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == heads.greedy("llama")


def test_an_engine_folder_remembers_its_tree(heads: Folders, tmp_path: Path) -> None:
    folder = build(
        heads.models.folder("llama"), heads.config("llama", "choices"), backend="eager",
        dtype="float32",
    )  # fmt: skip
    for config in (None, {"method": "medusa", "model": "draft", **SHAPES["choices"]}):
        with open_llm(folder, config) as llm:
            assert llm.speculation.tree.num_nodes == 5
            assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == heads.greedy("llama")
            assert llm.get_metrics()["num_accepted_tokens"] > 0
    with open_llm(folder, False) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == heads.greedy("llama")
        assert llm.get_metrics()["num_draft_calls"] == 0
    with pytest.raises(ConfigError, match=r"a static tree is fixed at build"):
        open_llm(folder, {"method": "medusa", "model": "draft", "num_medusa_heads": 3})
    with pytest.raises(ConfigError, match=r"'eagle' was asked for, .* built for 'medusa'"):
        open_llm(folder, eagle(Path("draft"), "eagle", num_speculative_tokens=3))


def test_refusals(heads: Folders, tmp_path: Path) -> None:
    target = heads.models.folder("llama")
    with pytest.raises(ConfigError, match=r"5 steps take as many Medusa heads, .* has 3"):
        open_llm(target, medusa(heads.folder("llama"), heads=5))
    with pytest.raises(ConfigError, match=r"not a draft for method 'eagle'.*write method 'medusa'"):
        open_llm(target, eagle(heads.folder("llama"), "eagle", num_speculative_tokens=3))
    other = random_eagle1(heads.models.hf("llama"), tmp_path / "eagle")
    with pytest.raises(ConfigError, match=r"not a draft for method 'medusa'.*write method 'eagle'"):
        open_llm(target, medusa(other))


def test_lossy_is_said(heads: Folders, caplog: pytest.LogCaptureFixture) -> None:
    """Typical acceptance: more drafts kept above temperature 0, other text, and a warning."""
    config, target = heads.config("llama", "default"), heads.models.folder("llama")
    flat = [SamplingParams(max_tokens=24, temperature=0.3, seed=seed) for seed in range(8)]
    with open_llm(target, config) as llm:
        expected = tokens(llm.generate(PROMPTS, flat, use_tqdm=False))
        lossless = llm.get_metrics()["num_accepted_tokens"]
    assert "lossy" not in caplog.text
    lossy = {"posterior_threshold": 0.01, "posterior_alpha": 0.3}
    with (
        caplog.at_level("WARNING"),
        open_llm(target, {**config, "lossy_typical_acceptance": lossy}) as llm,
    ):
        assert "lossy_typical_acceptance (posterior_threshold 0.01" in caplog.text
        found = tokens(llm.generate(PROMPTS, flat, use_tqdm=False))
        assert llm.get_metrics()["num_accepted_tokens"] > lossless
        assert found != expected
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == heads.greedy("llama")
        assert_no_leak(llm)


def test_heads_see_the_final_norm(heads: Folders) -> None:
    """The state that is handed over is the one that the target's own head reads."""
    with open_llm(heads.models.folder("llama"), heads.config("llama", "chain")) as llm:
        drafter: Any = inside.drafter(llm)
        states: list[tuple[int, torch.Tensor]] = []
        roll_out = drafter._roll_out

        def watched(requests: Any, *options: Any) -> Any:
            states.extend((len(r.tokens), drafter._states[r.id]) for r in requests)
            return roll_out(requests, *options)

        drafter._roll_out = watched
        text = llm.generate(PROMPTS[0], GREEDY_24).outputs[0].token_ids
    whole = torch.tensor([PROMPTS[0] + text])
    with torch.no_grad():
        expected = heads.models.hf("llama").model(whole).last_hidden_state[0]
    assert len(states) > 5
    for length, state in states:
        torch.testing.assert_close(state, expected[length - 2], rtol=1e-3, atol=1e-4)
