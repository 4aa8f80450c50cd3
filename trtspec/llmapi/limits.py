"""Limits: how much of its engine a runtime may use."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.build_config import BuildConfig
from trtspec.errors import EngineError


@dataclass(frozen=True)
class Limits:
    """How much of its engine a runtime may use; never more than the engine was built for."""

    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int

    @classmethod
    def of(
        cls,
        build: BuildConfig,
        max_batch_size: int | None,
        max_seq_len: int | None,
        max_num_tokens: int | None,
    ) -> Limits:
        """The build's limits, or smaller ones if requested; EngineError for larger ones."""
        asked = {
            "max_batch_size": max_batch_size,
            "max_seq_len": max_seq_len,
            "max_num_tokens": max_num_tokens,
        }
        chosen = {}
        for name, value in asked.items():
            built = getattr(build, name)
            if value is not None and value > built:
                raise EngineError(
                    f"{name}={value} exceeds the {built} that the engine was built for; "
                    f"lower it, or rebuild the engine with --{name} {value}"
                )
            chosen[name] = built if value is None else value
        return cls(**chosen)
