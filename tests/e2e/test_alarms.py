"""A draft that does not fit its target is told once, in the log and in the metrics; one that fits
is not, alone or in a hybrid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM

from .eagle_heads import eagle, random_eagle3
from .helpers import GREEDY_24, TinyModels, chain, eight_prompts, ngram, open_llm
from .hybrid_drafts import hybrid

PROMPTS = eight_prompts(560) * 2


def alarms(llm: LLM) -> dict[str, bool]:
    """What the metrics say of each draft once so many steps have drafted."""
    llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)
    return {found["draft"]: found["alarm"] for found in llm.get_metrics()["drafts"]}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "hardly accepted" in line]


def test_only_a_wrong_draft_is_told(
    models: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, right = models.folder("llama"), chain(models.folder("llama"), 3)
    wrong = eagle(random_eagle3(models.hf("llama"), tmp_path), "eagle3", num_speculative_tokens=3)
    one = {"max_batch_size": 1}
    with open_llm(folder, right, **one) as llm:
        assert alarms(llm) == {"draft_model (draft)": False}
        assert not lines(caplog)
    with open_llm(folder, wrong, **one) as llm:
        assert alarms(llm) == {"eagle3 (draft)": True}
        assert alarms(llm) == {"eagle3 (draft)": True}
        (line,) = lines(caplog)
        assert line.startswith("the draft eagle3 (draft) is hardly accepted: of ")
        assert llm.get_metrics()["drafts"][0]["num_alarms"] == 1
    caplog.clear()
    with open_llm(folder, hybrid(right, wrong, ngram(2)), **one) as llm:
        assert alarms(llm) == {"draft_model (draft)": False, "eagle3 (draft_2)": True}
        assert len(lines(caplog)) == 1


def test_forced_acceptance_says_nothing_of_a_draft(models: TinyModels) -> None:
    config: dict[str, Any] = chain(models.draft("llama"), 2)
    with open_llm(models.folder("llama"), {**config, "simulate_acceptance": [0.0]}) as llm:
        assert alarms(llm) == {}
    with open_llm(models.folder("llama"), ngram(2)) as llm:
        assert alarms(llm) == {}


@pytest.mark.parametrize("adaptive", [False, True])
def test_what_a_drafted_token_costs(models: TinyModels, adaptive: bool) -> None:
    """A draft as large as its target takes about as long; times of a busy machine may be many times
    longer."""
    config = {**chain(models.draft("llama"), 3), "adaptive": adaptive}
    with open_llm(models.folder("llama"), config) as llm:
        (found,) = llm.get_metrics()["drafts"]
        assert 0.01 < found["token_cost"] < 100
        assert llm.get_metrics()["num_engine_calls"] == 0
