"""DFlash and DDTree change no token, at any temperature and however prompts are fed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams, build
from trtspec.errors import ConfigError

from .dflash_heads import dflash, random_dflash, random_dflash2, random_dspark
from .helpers import (
    GREEDY_24,
    TinyModels,
    assert_no_leak,
    eight_prompts,
    open_llm,
    tokens,
    watch,
)
from .hybrid_drafts import hybrid
from .known_texts import KnownTexts
from .parallel_drafts import pard2, random_pard2

PROMPTS = eight_prompts(360)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "jetspec": {"causal_head": True},
    "window": {"use_swa": True, "swa_window_size": 9, "causal": False},
    "anchor": {"sample_from_anchor": True},
}
_TREE = {"topk": 3, "num_draft_tokens": 9}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"method": "dflash", "num_speculative_tokens": 5},
    "short": {"method": "dflash", "num_speculative_tokens": 2},
    "static": {"method": "dflash", "choices": [[0], [2], [0, 0], [2, 1], [2, 1, 0]]},
    "dynamic": {"method": "dflash", "num_speculative_tokens": 4, **_TREE},
    "ddtree": {"method": "ddtree", "num_speculative_tokens": 5, "num_draft_tokens": 24},
    "jetspec": {"method": "jetspec", "tree_depth": 5, "tree_width": 7, "budget": 128},
}
SHAPES |= {
    "dspark": {"method": "dspark", "num_speculative_tokens": 6},
    "dspark tree": {"method": "dspark", "num_speculative_tokens": 4, **_TREE},
    "dspark static": {"method": "dspark", "choices": SHAPES["static"]["choices"]},
    "dflash2": {"method": "dflash2", "num_speculative_tokens": 5},
    "dflash2 tree": {"method": "dflash2", "num_speculative_tokens": 4, **_TREE},
    "dspark, sure": {"method": "dspark", "block_size": 6, "confidence_threshold": 0.3},
}
VARIANT_OF = {
    "jetspec": "jetspec",
    "dspark": "gated",
    "dspark tree": "rnn",
    "dspark static": "vanilla",
    "dspark, sure": "vanilla",
    "dflash2": "dflash2",
    "dflash2 tree": "dflash2",
}
"""Of a shape that is not for every network."""
MARKOV = ("vanilla", "gated", "rnn")
CROSS = [("llama", VARIANT_OF.get(shape, "plain"), shape) for shape in SHAPES]
CROSS += [("qwen3", variant, "ddtree") for variant in ("causal", "window", "anchor")]
CROSS += [("llama3_tied", "plain", "chain")]


class Folders(KnownTexts):
    """Random networks, which are sometimes right."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        super().__init__(models, root, PROMPTS)
        self.folder = cache(self._folder)

    def _folder(self, case: str, variant: str) -> Path:
        folder = self.root / f"{case}-{variant}"
        if variant == "dflash2":
            return random_dflash2(self.models.hf(case), folder)
        if variant in MARKOV:
            return random_dspark(self.models.hf(case), folder, variant)
        return random_dflash(self.models.hf(case), folder, **VARIANTS[variant])

    def config(self, case: str, variant: str, shape: str, **more: Any) -> dict[str, Any]:
        return dflash(self.folder(case, variant), **SHAPES[shape] | more)


@pytest.fixture(scope="module")
def heads(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(models, tmp_path_factory.mktemp("heads"))


@pytest.mark.parametrize(("case", "variant", "shape"), CROSS)
def test_same_tokens(heads: Folders, case: str, variant: str, shape: str) -> None:
    metrics = heads.assert_same(case, heads.config(case, variant, shape))
    assert metrics["num_draft_tokens"] > 100


@pytest.mark.parametrize("shape", ["chain", "ddtree", "jetspec", "dspark tree", "dflash2"])
def test_preemption(heads: Folders, shape: str) -> None:
    variant = VARIANT_OF.get(shape, "plain")
    fewer = {"budget": 64} if shape == "jetspec" else {}
    heads.assert_same_when_preempted("llama", heads.config("llama", variant, shape, **fewer))


def test_in_a_hybrid(heads: Folders) -> None:
    """Each reads its own of the target's states."""
    models, root = heads.models, heads.root
    draft = models.hf("llama").__class__.from_pretrained(models.draft("llama"))
    states_before = random_pard2(draft, models.hf("llama"), root / "pard2")
    members = [heads.config("llama", VARIANT_OF[shape], shape) for shape in ("dspark", "dflash2")]
    members.append(pard2(states_before, num_speculative_tokens=2))
    heads.assert_same("llama", hybrid(*members))


@pytest.mark.parametrize("shape", SHAPES)
def test_two_engine_calls_a_step(heads: Folders, shape: str) -> None:
    config = heads.config("llama", VARIANT_OF.get(shape, "plain"), shape)
    with open_llm(heads.models.folder("llama"), config) as llm:
        steps = watch(llm)
        llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)
    pure = [step for step in steps if step.only_generates]
    assert len(pure) >= 7
    for step in pure:
        drafts = any(item.max_nodes for item in step.items)
        assert (step.target_calls, step.draft_calls) == (1, 1 if drafts else 0)


def test_up_to_the_last_position(heads: Folders) -> None:
    """Blocks reach past the longest sequence: they are drafted there as anywhere."""
    config = heads.config("llama", "plain", "chain")
    prompt = PROMPTS[0][:10]
    with open_llm(heads.models.folder("llama"), config, max_seq_len=40) as llm:
        output = llm.generate(prompt, SamplingParams(max_tokens=30, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 30
        assert_no_leak(llm)


def test_cuts_of_an_engine(heads: Folders) -> None:
    """An engine serves fewer steps and rows than it was built for, of its own method."""
    folder, network = heads.models.folder("llama"), heads.folder("llama", "plain")
    config = heads.config("llama", "plain", "ddtree")
    engine = build(folder, config, backend="eager", dtype="float32")
    smaller = {"topk": 23, "num_speculative_tokens": 3, "num_draft_tokens": 24}
    for shape in (smaller, {**smaller, "num_draft_tokens": 26}):
        asked = dflash(network, "ddtree", **shape)
        if shape["num_draft_tokens"] > 24:
            with pytest.raises(ConfigError, match="was built for at most 24"):
                LLM(engine, asked, skip_tokenizer_init=True)
            continue
        with LLM(engine, asked, skip_tokenizer_init=True) as llm:
            found = tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False))
            assert found == heads.greedy("llama")
    with pytest.raises(ConfigError, match=r"'dflash' was asked for, .* built for 'ddtree'"):
        LLM(engine, dflash(network, num_speculative_tokens=3), skip_tokenizer_init=True)


def test_jetspec_needs_a_causal_head(heads: Folders) -> None:
    config = heads.config("llama", "plain", "jetspec")
    with pytest.raises(ConfigError, match="layer 0 of the draft sees its whole block; write"):
        open_llm(heads.models.folder("llama"), config)


def test_a_block_too_short(heads: Folders) -> None:
    config = heads.config("llama", "plain", "chain", num_speculative_tokens=6)
    with pytest.raises(ConfigError, match="drafts of 6 tokens were asked for, a block of 6 rows"):
        open_llm(heads.models.folder("llama"), config)
    with pytest.raises(ConfigError, match="is not a draft for method 'eagle3': draft: DFlash"):
        network = heads.folder("llama", "plain")
        open_llm(
            heads.models.folder("llama"),
            {"method": "eagle3", "model": str(network), "num_speculative_tokens": 2},
        )
