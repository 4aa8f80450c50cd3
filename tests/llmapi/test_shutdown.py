"""What is left of an LLM that was shut down."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.errors import EngineError

from .. import inside
from ..e2e.every_method import LIMITS, METHODS, PROMPTS
from ..e2e.helpers import TinyModels, open_llm


@pytest.fixture(autouse=True)
def collects_nothing() -> Iterator[None]:
    """What is let go goes at once, or waits for a collection, which knows nothing of how much
    memory of a GPU hangs on it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held(llm: LLM) -> list[weakref.ref[Any]]:
    """Sessions, which hold weights, and caches."""
    engines = [inside.target(llm), *inside.drafts(llm)]
    sessions = [session for engine in engines for session in inside.sessions(engine)]
    caches = [
        cache for engine in engines if hasattr(engine, "caches") for cache in engine.caches.all
    ]
    return [weakref.ref(each) for each in (*sessions, *caches)]


@pytest.mark.parametrize(
    ("method", "is_async"),
    [("chain", False), ("chain", True), ("medusa", False), ("hybrid", False)],
)
def test_weights_and_caches_are_given_back(
    models: TinyModels, tmp_path: Path, method: str, is_async: bool
) -> None:
    """While the object lives on, so that the next LLM may be opened by its name."""
    target, speculation = METHODS[method](models, tmp_path)
    options = {**LIMITS, "async_scheduling": is_async}
    with open_llm(target, speculation, **options) as llm:
        llm.generate(PROMPTS, SamplingParams(max_tokens=4), use_tqdm=False)
        before, refs = llm.get_metrics(), held(llm)
        assert len(refs) > 4 and all(ref() is not None for ref in refs)
    assert [ref() for ref in refs if ref() is not None] == []
    llm.shutdown()
    assert llm.get_metrics() == before
    assert llm.load().num_running == 0
    with pytest.raises(EngineError, match="shut down"):
        llm.generate(PROMPTS)
