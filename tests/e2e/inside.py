"""What tests see inside of an LLM beyond its public face: the one place that knows the names.

`watch`, `assert_no_leak` and `record_drafts` look at single steps; see `helpers` and
`hybrid_drafts`.
"""

from __future__ import annotations

from typing import Any

from trtspec import LLM
from trtspec.executor.model_engine import ModelEngine


def target_engine(llm: LLM) -> ModelEngine:
    """The target's engine."""
    return llm._target


def draft_engine(llm: LLM) -> Any:
    """The engine of the only draft."""
    (engine,) = llm._drafts
    return engine


def target_weights(llm: LLM) -> dict[str, Any]:
    """The target's tensors by name, those of a compiled engine."""
    weights: dict[str, Any] = target_engine(llm)._session._weights  # type: ignore[attr-defined]
    return weights


def draft_weights(llm: LLM) -> list[dict[str, Any]]:
    """The tensors of each graph of the only draft, by name, those of a compiled engine."""
    engine = draft_engine(llm)
    sessions = [getattr(engine, name, None) for name in ("_step", "_rollout")]
    return [session._weights for session in sessions if session is not None]


def hidden_width(llm: LLM) -> int:
    """Numbers of the target's states that a row of the only draft is fed."""
    width: int = draft_engine(llm)._hidden_in
    return width
