"""Weights and a vocabulary of its own for the draft of every method: the text stays that of the
target alone, a pass reads less, and only tokens of the vocabulary are drafted."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trtspec import LLM, SamplingParams
from trtspec.errors import TrtspecError

from .every_method import LIMITS, METHODS, PROMPTS, Made
from .helpers import TinyModels, assert_no_leak, open_llm, tokens

PARAMS = [SamplingParams(12), SamplingParams(12, temperature=0.8, seed=3)]
ONE_NETWORK = [n for n in METHODS if n not in ("plain", "ngram", "hybrid", "hybrid_of_blocks")]
UNCUT = {
    "medusa": r"only the head of the methods eagle, .* this vocabulary is used whole",
    "assistant": r"only the head of the methods eagle, .* this vocabulary is used whole",
    "eagle3": r"has its own token map \(d2t, .* leave vocabulary out",
}
"""Several heads, one that is not computed whole, and one that comes with a map; how a cut of each
is refused."""

Texts = list[list[list[int]]]


class Served(NamedTuple):
    """dtype: of the draft's weights, None: as the target's. num_bytes: that a pass of it reads."""

    dtype: str | None
    num_bytes: float


class Drafts:
    """Each method's target and draft, made once, with their texts."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        self.models, self.root = models, root
        self.made: Callable[[str], Made] = cache(self._make)
        self.plain: Callable[[Path], Texts] = cache(self._plain)

    def _make(self, name: str) -> Made:
        (self.root / name).mkdir()
        return METHODS[name](self.models, self.root / name)

    def _plain(self, folder: Path) -> Texts:
        with open_llm(folder, None, **LIMITS) as llm:
            return self._read(llm)

    def _read(self, llm: LLM) -> Texts:
        return [tokens(llm.generate(PROMPTS[:4], p, use_tqdm=False)) for p in PARAMS]

    def serve(self, name: str, **options: Any) -> Served:
        """The texts are those without drafts."""
        folder, speculation = self.made(name)
        with open_llm(folder, {**(speculation or {}), **options}, **LIMITS) as llm:
            assert self._read(llm) == self.plain(folder)
            assert_no_leak(llm)
            assert llm.get_metrics()["num_draft_tokens"] > 0
            (draft,) = llm.config.drafts
            own = draft.weights.weight_dtype if draft.weights else None
            return Served(own, llm.config.pass_bytes(draft).expected(1))


@pytest.fixture(scope="module")
def drafts(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    return Drafts(models, tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def usual(drafts: Drafts) -> Callable[[str], Served]:
    return cache(drafts.serve)


@pytest.mark.parametrize("name", ONE_NETWORK)
def test_weights(drafts: Drafts, usual: Callable[[str], Served], name: str) -> None:
    """A copy of the target has the fewest bits that there are, unless it is asked for more."""
    dtype = "int8" if name == "self" else "int4"
    found = drafts.serve(name, weight_dtype=dtype, activation_dtype="float32")
    assert found.dtype == dtype != usual(name).dtype
    assert (found.num_bytes < usual(name).num_bytes) == (name != "self")


@pytest.mark.parametrize("name", [name for name in ONE_NETWORK if name not in UNCUT])
def test_vocabulary(
    drafts: Drafts, usual: Callable[[str], Served], proposed: set[int], name: str
) -> None:
    listed = sorted({token for text in drafts.plain(drafts.made(name)[0])[0] for token in text})
    file = drafts.root / f"{name}.json"
    file.write_text(json.dumps(listed))
    whole = usual(name).num_bytes
    proposed.clear()
    assert drafts.serve(name, vocabulary=str(file)).num_bytes < whole
    assert proposed and proposed <= set(listed)


@pytest.mark.parametrize("name", UNCUT)
def test_what_is_not_cut(drafts: Drafts, name: str) -> None:
    file = drafts.root / "list.json"
    file.write_text("[3, 4, 5]")
    with pytest.raises(TrtspecError, match=UNCUT[name]):
        drafts.serve(name, vocabulary=str(file))
