"""DecodingConfig: the options that all speculative methods share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from trtspec.config.tree import MAX_TREE_ROWS
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.errors import ConfigError


class DraftsAtHand(Protocol):
    """The drafts that exist for a target."""

    @property
    def built(self) -> DecodingConfig | None:
        """What an engine folder was built for; None for a checkpoint."""
        ...

    @property
    def by_pass(self) -> bool:
        """Whether a draft model stops drafting when the next pass would not pay."""
        ...

    def method_for(self, model: str | Path) -> type[Any]:
        """The config class of the method that a draft checkpoint is made for.

        Raises:
            CheckpointError: it cannot be found or read, or does not fit the target.
        """
        ...

    def training_layers(self, method: str) -> tuple[int, ...]:
        """The target layers whose outputs are needed to train a draft of this method; ConfigError
        if drafts of this method are not trained."""
        ...


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Options that all methods share. max_draft_len: most draft tokens on one path (K of a chain,
    depth D of a tree). max_model_len: texts of that many tokens go on without drafts; by default
    those longer than the draft's network supports. Methods without a network draft for texts of any
    length.

    simulate_acceptance: FOR BENCHMARKS AND TESTS ONLY, the text is then NOT the model's. Drafts are
    accepted at random, whatever their tokens: entry i is the probability that a step accepts its
    first i + 1 drafts (unconditional, so entries never rise); positions without an entry are never
    accepted. vLLM's `synthetic_acceptance_rates`.

    adaptive: in each step verify as many drafts as pay, possibly none, judging by measured engine
    times and recent acceptance; the numbers here are then maxima. The text is the same. SGLang's
    `speculative_adaptive`, vLLM's `enable_adaptive_verification`.
    """

    method: ClassVar[str]
    stands_alone: ClassVar[str | None] = None
    """Why the method cannot be part of a hybrid; None: it can."""
    usual_steps: ClassVar[int | None] = None
    """Default number of draft steps; None: the method needs none, or uses as many as its network
    was made for."""
    usual_rows: ClassVar[int | None] = None
    """Default number of rows to verify; None: it follows from other numbers."""

    max_draft_len: int
    max_model_len: int | None = None
    simulate_acceptance: tuple[float, ...] | None = None
    adaptive: bool = False

    @property
    def num_rows(self) -> int:
        """N: most rows that a verify step feeds per request, the root included."""
        return self.max_draft_len + 1

    @property
    def members(self) -> tuple[DecodingConfig, ...]:
        """The configs whose drafts are verified together: this one alone, or those of a hybrid."""
        return (self,)

    @property
    def typical_acceptance(self) -> TypicalAcceptanceConfig | None:
        """The lossy acceptance rule, if one was requested; None: lossless."""
        return None

    @property
    def note(self) -> str | None:
        """A log line about how the options were interpreted."""
        return None

    def resolve(self, drafts: DraftsAtHand) -> DecodingConfig:
        """The config itself, or the chosen one if the method is chosen automatically.

        Raises:
            CheckpointError: a named draft cannot be found or read.
        """
        return self

    def _check_common(self) -> None:
        at_least("max_draft_len", self.max_draft_len, 1)
        if self.max_draft_len + 1 > MAX_TREE_ROWS:
            raise ConfigError(
                f"max_draft_len={self.max_draft_len} makes {self.max_draft_len + 1} rows a step "
                f"with the root; at most {MAX_TREE_ROWS} are supported"
            )
        if self.max_model_len is not None:
            at_least("max_model_len", self.max_model_len, 2)
        if self.simulate_acceptance is not None:
            self._check_rates(self.simulate_acceptance)

    def _check_rates(self, rates: tuple[float, ...]) -> None:
        shown = f"simulate_acceptance={list(rates)}"
        if not 1 <= len(rates) <= self.max_draft_len:
            raise ConfigError(
                f"{shown} has {len(rates)} rates; give 1 to {self.max_draft_len}, at most one for "
                "each position of max_draft_len"
            )
        wrong = [rate for rate in rates if not 0.0 <= rate <= 1.0]
        if wrong:
            raise ConfigError(f"{shown}: {wrong[0]} is no probability; it must be in [0, 1]")
        for position in range(1, len(rates)):
            if rates[position] > rates[position - 1]:
                raise ConfigError(
                    f"{shown} rises at position {position}, from {rates[position - 1]} to "
                    f"{rates[position]}; rates are unconditional: a draft is accepted only behind "
                    "an accepted one, so none may exceed the one before"
                )

    def _set(self, name: str, value: Any) -> None:
        """Replace a field by its resolved value; only during construction."""
        object.__setattr__(self, name, value)


def at_least(name: str, value: int, low: int) -> None:
    """Raise ConfigError if an option is below its minimum."""
    if value < low:
        raise ConfigError(f"{name}={value} must be at least {low}")
