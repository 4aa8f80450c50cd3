"""Steps launched ahead of results, over engines: the texts of lag 0, in calm worlds its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.errors import ConfigError
from trtspec.executor.resident import halves
from trtspec.executor.resident.engine import Patch
from trtspec.executor.resident.target import ResidentTarget
from trtspec.ops.resident_step import ITEM, STATE, Advanced

from .every_method import METHODS
from .helpers import GREEDY_24, TinyModels, eight_prompts, ngram, open_llm, tokens
from .steps_ahead_worlds import Engines, compare


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The models are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Engines]]:
    models = TinyModels(tmp_path_factory.mktemp("models"))
    opened = []

    @cache
    def open_engines(name: str) -> Engines:
        opened.append(Engines(*METHODS[name](models, tmp_path_factory.mktemp(name))))
        return opened[-1]

    yield open_engines
    for each in opened:
        each.llm.shutdown()


def check(engines: Engines, seeds: range) -> Counter[str]:
    """What happened in these worlds."""
    events: Counter[str] = Counter()
    for seed in seeds:
        try:
            events += compare(engines, seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return events


# A tree; modules whose last rows are fed again; rows that read the state before them, or none; a
# block.
WORLDS = {"plain": 20, "eagle3": 32, "modules": 14, "pard2": 14, "pard": 14, "dflash": 10}


@pytest.mark.parametrize("name", WORLDS)
def test_any_lag_gives_what_lag_0_gives(name: str, engines: Callable[[str], Engines]) -> None:
    events = check(engines(name), range(WORLDS[name]))
    others = {"plain": ("preempted",), "eagle3": ("accepted", "moved", "abort", "cached")}
    for event in ("stop", "length", "stop string", "chunks", "left", *others.get(name, ())):
        assert events[event] > (3 if name == "eagle3" else 0), (event, events)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*WORLDS, "eagle", "mtp", "p_eagle", "ddtree"])
def test_any_lag_gives_what_lag_0_gives_in_many_worlds(
    name: str, engines: Callable[[str], Engines]
) -> None:
    check(engines(name), range(1000, 1300))


class LatePatch(ResidentTarget):
    """Is told the new blocks of requests that it holds one launch later."""

    late: Any = None

    def launch(self, patch: Patch) -> Any:
        entered = {each.request.id for each in patch.entered}
        now = {id: tables for id, tables in patch.tables.items() if id in entered}
        gone = {*patch.removed, *now}
        held = {id: tables for id, tables in (self.late or {}).items() if id not in gone}
        self.late = {id: tables for id, tables in patch.tables.items() if id not in entered}
        return super().launch(replace(patch, tables={**held, **now}))


def test_a_late_patch_is_noticed(engines: Callable[[str], Engines]) -> None:
    eagle3 = engines("eagle3")
    eagle3.resident_type = LatePatch
    try:
        with pytest.raises(Exception, match=r"do not fit its blocks"):
            check(eagle3, range(8))
    finally:
        eagle3.resident_type = ResidentTarget


def _uncompacted(kept: Any, items: Any, advanced: Advanced) -> Advanced:
    return advanced._replace(src_slots=torch.full_like(advanced.src_slots, -1))


def _fed_again(kept: Any, items: Any, advanced: Advanced) -> Advanced:
    places = items[items[:, ITEM.index("generates")] > 0, ITEM.index("place")]
    kept.state[places, STATE.index("drafted")] -= 1
    return advanced


def _another_length(kept: Any, items: Any, advanced: Advanced) -> Advanced:
    advanced.result[:, 2] -= items[:, ITEM.index("generates")]
    return advanced


@pytest.mark.parametrize("spoil", [_uncompacted, _fed_again, _another_length])
def test_a_step_that_leaves_something_out_is_noticed(
    spoil: Callable[..., Advanced],
    engines: Callable[[str], Engines],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance = halves.advance

    def spoilt(kept: Any, tables: Any, items: Any, *rest: Any, **sizes: Any) -> Advanced:
        return spoil(kept, items, advance(kept, tables, items, *rest, **sizes))

    monkeypatch.setattr(halves, "advance", spoilt)
    with pytest.raises(Exception, match=r".*"):
        check(engines("eagle3"), range(24))


def verify_steps(llm: LLM) -> list[int]:
    """Verify steps of a text that takes as many with steps ahead, and what they read."""
    params = SamplingParams(12, ignore_eos=True, speculative={"num_speculative_tokens": 0})  # type: ignore[arg-type]
    keys = "num_verify_steps", "verify_weight_bytes", "verify_kv_bytes"
    before = llm.get_metrics()
    llm.generate([[1, 2, 3]], params, use_tqdm=False)
    after = llm.get_metrics()
    return [after[key] - before[key] for key in keys]


def test_an_llm_launches_ahead(tmp_path: Path) -> None:
    """Texts and figures of `LLM`, padded or not, and what it refuses."""
    models = TinyModels(tmp_path)
    (tmp_path / "eagle3").mkdir()
    folder, speculation = METHODS["eagle3"](models, tmp_path / "eagle3")
    prompts = eight_prompts(77)
    found = []
    for ahead, pads in ((0, None), (2, None), (1, True)):
        options = {"steps_ahead": ahead, "max_batch_size": 4, "cuda_graph_config": pads}
        with open_llm(folder, speculation, **options) as llm:
            texts = tokens(llm.generate(prompts, GREEDY_24, use_tqdm=False))
            figures = llm.get_metrics()
            steps = verify_steps(llm)
            found.append((texts, figures["num_drafts"], figures["num_accepted_tokens"], steps))
    assert found[0] == found[1] == found[2]
    refused = r"steps_ahead=1: the drafts of method 'ngram', with these options, need the host"
    with pytest.raises(ConfigError, match=refused):
        open_llm(folder, ngram(4), steps_ahead=1)
    rates = {**speculation, "simulate_acceptance": [0.5]}
    with pytest.raises(ConfigError, match=r"acceptance other than the target's own"):
        open_llm(folder, rates, steps_ahead=1)
    with pytest.raises(ConfigError, match=r"steps_ahead=-1 must be 0 .* or more"):
        open_llm(folder, steps_ahead=-1)
