"""DecodingConfig: what the options of every speculative method share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from trtspec.config.tree import MAX_TREE_ROWS
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.errors import ConfigError


class DraftsAtHand(Protocol):
    """The drafts that there are for a target."""

    @property
    def built(self) -> DecodingConfig | None:
        """What an engine folder was built for; None of a checkpoint."""
        ...

    @property
    def by_pass(self) -> bool:
        """Whether a draft model ends its drafts where the next pass does not pay."""
        ...

    def method_for(self, model: str | Path) -> type[Any]:
        """The config class of the method that a draft's checkpoint is made for.

        Raises:
            CheckpointError: it cannot be found or read, or does not fit the target.
        """
        ...

    def training_layers(self, method: str) -> tuple[int, ...]:
        """The outputs of the target's layers that training a draft of a method takes; ConfigError
        if no drafts are trained for it."""
        ...


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """What every method shares. max_draft_len: most draft tokens on one path (K of a chain, depth D
    of a tree). max_model_len: texts of so many tokens go on without drafts; left out, those that
    are longer than what the draft's network was made for. A method without a network drafts in all.

    simulate_acceptance: FOR BENCHMARKS AND TESTS ONLY, the text is then NOT the model's. Drafts are
    accepted by chance, whatever their tokens: entry i is the probability that a step accepts its
    first i + 1 drafts (unconditional, so entries never rise); positions without an entry are never
    accepted. vLLM's `synthetic_acceptance_rates`.

    adaptive: verify in each step as many of the drafts as pay, by the measured times of the engines
    and the acceptance so far, none included; the numbers here are then maxima. The text is the
    same. SGLang's `speculative_adaptive`, vLLM's `enable_adaptive_verification`.
    """

    method: ClassVar[str]
    stands_alone: ClassVar[str | None] = None
    """Why it cannot be part of a hybrid; None: it can."""
    usual_steps: ClassVar[int | None] = None
    """Draft steps where nobody names a number; None: the method needs none, or as many as its
    network was made for."""
    usual_rows: ClassVar[int | None] = None
    """Rows verified where nobody names a number; None: what follows from other numbers."""

    max_draft_len: int
    max_model_len: int | None = None
    simulate_acceptance: tuple[float, ...] | None = None
    adaptive: bool = False

    @property
    def num_rows(self) -> int:
        """Rows a verify step feeds per request at most, the root included (N)."""
        return self.max_draft_len + 1

    @property
    def members(self) -> tuple[DecodingConfig, ...]:
        """The configs whose drafts are verified together: this one alone, or those of a hybrid."""
        return (self,)

    @property
    def typical_acceptance(self) -> TypicalAcceptanceConfig | None:
        """The lossy rule that accepts drafts, where one was asked for; None: lossless."""
        return None

    @property
    def note(self) -> str | None:
        """A line for the log about what was made of the options."""
        return None

    def resolve(self, drafts: DraftsAtHand) -> DecodingConfig:
        """Itself, or, where the method is to be chosen, what is chosen.

        Raises:
            CheckpointError: a draft that is named cannot be found or read.
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
        """Replace a field by what it resolves to; only while the object is made."""
        object.__setattr__(self, name, value)


def at_least(name: str, value: int, low: int) -> None:
    """ConfigError for an option below its lowest value."""
    if value < low:
        raise ConfigError(f"{name}={value} must be at least {low}")
