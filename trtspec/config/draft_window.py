"""DraftWindow: which tokens of a text a draft attends to."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class DraftWindow:
    """The first ``sinks`` tokens and the newest ``size``, both in whole blocks of the cache; the
    blocks between are released. Attention over a window alone breaks down when the first tokens are
    missing, whatever they are (StreamingLLM, arXiv 2309.17453)."""

    size: int
    sinks: int

    def __post_init__(self) -> None:
        for name, value, least in (("draft_window", self.size, 1), ("draft_sinks", self.sinks, 0)):
            if value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
            if value >= 2**31:
                raise ConfigError(f"{name}={value} must be below 2**31")
