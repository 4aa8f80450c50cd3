"""What tests see inside of an LLM beyond its public face: the one place that knows the names.

`watch` and `assert_no_leak` in e2e/helpers.py look at single steps themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from trtspec import LLM
from trtspec.engine.folder import EngineConfig
from trtspec.executor.engines.engine_parts import EngineSessions, NetworkFacts
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.speculative.alarm import AlarmedDrafter

# Any: whether the target is compiled, padded, counted or drafts is what the tests are about.


def executor(llm: LLM) -> Any:
    """The step loop."""
    return llm._executor


def step_graphs(llm: LLM) -> Any:
    """The graphs of steps that run on the device alone."""
    return executor(llm)._resident._engine._halves._graphs


def worker(llm: LLM) -> Any:
    """The thread that runs it, and what it serves."""
    return llm._worker


def drafter(llm: LLM) -> Any:
    """What drafts, without what watches it."""
    found = executor(llm)._drafter
    return found.watched if isinstance(found, AlarmedDrafter) else found


def resources(llm: LLM) -> Any:
    """The caches of target and drafts."""
    return executor(llm)._resources


def scheduler(llm: LLM) -> Any:
    return executor(llm)._scheduler


def target(llm: LLM) -> Any:
    """The target's engine."""
    return llm._runtime.target


def own_caches(llm: LLM, num_blocks: int) -> ModelEngine:
    """An engine of the target's session with float32 caches of its own."""
    engine, device = llm.config, torch.device("cpu")
    caches = KVTensors.new(engine.target, torch.float32, engine.layout, num_blocks, device)
    facts = NetworkFacts(engine.target.vocab_size)
    return ModelEngine(facts, EngineSessions(session(target(llm))), caches)


def drafts(llm: LLM) -> Any:
    """The engines of the drafts."""
    return [draft.engine for draft in llm._runtime.drafts]


def session(engine: Any) -> Any:
    """What an engine calls: a compiled graph, or the modules."""
    return engine._sessions.model


def sessions(engine: Any) -> list[Any]:
    """All that an engine calls."""
    own = getattr(engine, "_sessions", None)
    if own is not None and own.passes is not None:
        return [own.passes.session]
    found = [own.model, own.step, own.rollout] if own else [engine._rollout]
    return [each for each in found if each is not None]


def rollout(engine: Any) -> Any:
    """What a draft's engine calls for a whole rollout."""
    own = getattr(engine, "_sessions", None)
    return own.rollout if own else engine._rollout


def draft_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are built from now on make whole rollouts of drafts, as on a GPU."""
    monkeypatch.setattr(EngineConfig, "by_pass", False)


def replace_session(engine: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """From now on a `ModelEngine` calls ``wrap(session)`` in place of that session."""
    wrapped = wrap(getattr(engine._sessions, name))
    engine._sessions = replace(engine._sessions, **{name: wrapped})


def slot_session(network: Any) -> Any:
    """The session of the graph with caches that a network over slots feeds; one that verifies feeds
    it by way of another session."""
    inner = getattr(network, "_graph", None)
    return (network._session if inner is None else inner)._session


def weights(engine: Any) -> list[dict[str, Any]]:
    """The tensors of each graph of a compiled engine, by name."""
    return [s._weights for s in sessions(engine) if hasattr(s, "_weights")]


def hidden_width(engine: Any) -> int:
    """Numbers of the target's states that a row of a draft is fed."""
    width: int = engine._network.hidden_in
    return width
