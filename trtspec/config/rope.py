"""RopeConfig: a table of rotary position embedding, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "proportional")


@strict_config()
@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding; fields that a type does not use stay at their defaults.

    ``theta``: the base; ``factor``: by how much the context is stretched (all but default);
    ``original_max_position_embeddings``: the context before stretching, in tokens (llama3, yarn);
    ``low_freq_factor`` and ``high_freq_factor`` bound llama3's smooth band. yarn:
    ``attention_factor`` scales cos and sin (None: derived from factor, ``mscale`` and
    ``mscale_all_dim``), ``beta_fast`` and ``beta_slow`` bound the ramp in rotations, ``truncate``
    rounds the bounds to whole dimensions.

    longrope divides each frequency by its own factor, from ``short_factor`` if the longest
    sequence, of ``length`` tokens, stays within ``original_max_position_embeddings``, otherwise
    from ``long_factor``. A build makes that choice once, for all positions. ``length`` None: not
    known yet; it is ignored when tables are compared. ``attention_factor`` None: derived from
    ``factor``.

    proportional: the first ``turning`` share of a whole head's frequencies is used, the others are
    0.
    """

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    length: int | None = field(default=None, compare=False)
    turning: float = 1.0

    def __post_init__(self) -> None:
        if self.type not in ROPE_TYPES:
            raise ConfigError(
                f"rope type {self.type!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
            )
        if not self.theta > 1:
            raise ConfigError(f"rope theta is {self.theta}; it must be above 1")
        if self.type == "default":
            return
        if not self.factor > 0:
            raise ConfigError(f"rope factor is {self.factor}; it must be positive")
        if not 0 < self.turning <= 1:
            raise ConfigError(
                f"turning share of rope is {self.turning}; it must be above 0 and at most 1"
            )
        if self.type in ("linear", "proportional"):
            return
        original = self.original_max_position_embeddings
        if original is None or original < 1:
            raise ConfigError(
                f"rope type {self.type} needs original_max_position_embeddings >= 1, not {original}"
            )
        if self.type == "longrope":
            if self.short_factor is None or self.long_factor is None:
                raise ConfigError("rope type longrope needs short_factor and long_factor")
            if len(self.short_factor) != len(self.long_factor):
                raise ConfigError(
                    f"rope type longrope has {len(self.short_factor)} numbers in short_factor and "
                    f"{len(self.long_factor)} in long_factor; it needs as many in both"
                )
        elif self.type == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            if low is None or high is None or not 0 < low < high:
                raise ConfigError(
                    "rope type llama3 needs 0 < low_freq_factor < high_freq_factor, "
                    f"not {low} and {high}"
                )
        elif not 0 < self.beta_slow <= self.beta_fast:
            raise ConfigError(
                "rope type yarn needs 0 < beta_slow <= beta_fast, "
                f"not {self.beta_slow} and {self.beta_fast}"
            )

    @property
    def factors(self) -> tuple[float, ...]:
        """longrope's divisors of the frequencies, for sequences of ``length`` tokens."""
        assert self.short_factor is not None and self.long_factor is not None  # checked
        original, length = self.original_max_position_embeddings, self.length
        assert original is not None  # checked
        return self.short_factor if length is not None and length <= original else self.long_factor

    def for_length(self, length: int) -> RopeConfig:
        """The table for sequences of at most this length; only longrope's frequencies depend on
        it."""
        return replace(self, length=length) if self.type == "longrope" else self

    def usual(self, length: int) -> int:
        """The sequence length at which a model made for ``length`` tokens works best: that length,
        or the range of longrope's short factors."""
        original = self.original_max_position_embeddings
        return min(length, original) if self.type == "longrope" and original else length

    def stretched(self, length: int) -> int:
        """The longest sequence of a model that was made for ``length`` tokens: that length, or the
        range to which positions are stretched, if that is longer and ``length`` refers to the model
        before stretching."""
        if self.type == "linear":
            return max(length, int(length * self.factor))
        if self.type == "yarn" and self.original_max_position_embeddings is not None:
            return max(length, int(self.original_max_position_embeddings * self.factor))
        return length
