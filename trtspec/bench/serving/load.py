"""LoadTest: what is asked of a server, and when."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

CHAT_ENDPOINT = "/v1/chat/completions"
ENDPOINTS = ("/v1/completions", CHAT_ENDPOINT)
_OWN_KEYS = ("model", "prompt", "messages", "stream", "n", "max_tokens", "temperature", "seed")


@dataclass(frozen=True)
class LoadPoint:
    """How fast requests are sent: mean arrivals a second (inf: all at once), and how many may be
    under way at once (None: any number)."""

    request_rate: float
    max_concurrency: int | None

    @property
    def name(self) -> str:
        rate = "all at once" if math.isinf(self.request_rate) else f"{self.request_rate:g} req/s"
        return rate if self.max_concurrency is None else f"{rate}, {self.max_concurrency} at a time"


@strict_config()
@dataclass(frozen=True)
class LoadTest:
    """A checked load of one or more points; ConfigError names a bad value.

    num_prompts: requests a point; prompt_chars: characters of a prompt where the client makes them;
    seed: of arrivals, made-up prompts and sampling (request i samples with seed + i).
    request_rates, max_concurrencies: one of the two may hold several values, each a point.
    extra_body: further fields of every request's body; None removes one.
    """

    dataset: str
    endpoint: str = ENDPOINTS[0]
    num_prompts: int = 100
    prompt_chars: int = 512
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    request_rates: tuple[float, ...] = (math.inf,)
    max_concurrencies: tuple[int | None, ...] = (None,)
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.endpoint.startswith("/") or not self.endpoint.endswith("/completions"):
            raise ConfigError(f"endpoint {self.endpoint!r} is none of {', '.join(ENDPOINTS)}")
        for name in ("num_prompts", "prompt_chars", "max_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature {self.temperature} must be 0 or more")
        for rate in self.request_rates:
            if not rate > 0:  # also refuses nan
                raise ConfigError(f"request_rate {rate} must be above 0, or inf: all at once")
        for most in self.max_concurrencies:
            if most is not None and most < 1:
                raise ConfigError(f"max_concurrency {most} must be at least 1")
        points = self.points
        if not points or len(set(points)) < len(points):
            raise ConfigError(
                f"request_rate {self.request_rates} and max_concurrency {self.max_concurrencies} "
                "must be at least one value each, and no value twice"
            )
        if len(self.request_rates) > 1 and len(self.max_concurrencies) > 1:
            raise ConfigError(
                f"request_rate and max_concurrency have {len(self.request_rates)} and "
                f"{len(self.max_concurrencies)} values; only one of the two may be swept"
            )
        own = [key for key in _OWN_KEYS if self.extra_body.get(key) is not None]
        if own:
            raise ConfigError(f"extra_body may not hold {', '.join(own)}; the client sets them")

    @property
    def is_chat(self) -> bool:
        return self.endpoint.endswith("/chat/completions")

    @property
    def points(self) -> list[LoadPoint]:
        return [LoadPoint(r, c) for r in self.request_rates for c in self.max_concurrencies]

    def body(self, model: str, prompt: str, index: int) -> dict[str, Any]:
        """The request of a prompt, the index-th of its point."""
        asked: dict[str, Any] = {"prompt": prompt}
        if self.is_chat:
            asked = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "model": model,
            **asked,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed + index,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
            **self.extra_body,
        }
        return {key: value for key, value in body.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """All that two results must share to be comparable, as plain JSON values, beside the points
        and the prompts themselves."""
        names = ("dataset", "endpoint", "num_prompts", "prompt_chars", "max_tokens", "temperature")
        return {
            **{name: getattr(self, name) for name in names},
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "extra_body": dict(self.extra_body),
        }


def arrivals(count: int, request_rate: float, seed: int) -> list[float]:
    """When each request is sent, in seconds after the first one.

    A Poisson process: independent exponential gaps, scaled so that their mean is exactly 1 / rate
    (a few dozen plain draws would miss the rate by tens of per cent, which would pass for the
    server's doing). The same count and seed give the same pattern at every rate.
    """
    if math.isinf(request_rate) or count < 2:
        return [0.0] * count
    draw = random.Random(seed)
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + draw.expovariate(1.0))
    scale = (count - 1) / request_rate / times[-1]
    return [time * scale for time in times]
