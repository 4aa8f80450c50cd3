"""One config class per speculative method, and `parse_speculative_config` for what users write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.config.speculative_keys import (
    COMMON_ALIASES,
    COMMON_FOREIGN,
    DRAFT_MODEL_FOREIGN,
    METHODS_ELSEWHERE,
    MODEL_ALIASES,
    NGRAM_ALIASES,
    NGRAM_FOREIGN,
    TREE_ALIASES,
)
from trtspec.config.strict import from_dict, nearest, strict_config, to_dict
from trtspec.errors import ConfigError

MAX_TREE_ROWS = 1024
MAX_TOPK = 64
DEFAULT_NGRAM_MAX = 5
DEFAULT_NGRAM_MIN = 2


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """What every method shares. max_draft_len: most draft tokens on one path (K of a chain, depth D
    of a tree). max_model_len: longest sequence the drafts must serve; at least the engine's."""

    method: ClassVar[str]

    max_draft_len: int
    max_model_len: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows a verify step feeds per request at most, the root included (N)."""
        return self.max_draft_len + 1

    def _check_common(self) -> None:
        _at_least("max_draft_len", self.max_draft_len, 1)
        if self.max_draft_len + 1 > MAX_TREE_ROWS:
            raise ConfigError(
                f"max_draft_len={self.max_draft_len} makes {self.max_draft_len + 1} rows a step "
                f"with the root; at most {MAX_TREE_ROWS} are supported"
            )
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)


@strict_config(
    aliases={**COMMON_ALIASES, **NGRAM_ALIASES}, foreign={**COMMON_FOREIGN, **NGRAM_FOREIGN}
)
@dataclass(frozen=True, kw_only=True)
class NGramDecodingConfig(DecodingConfig):
    """Prompt lookup: drafts continue the most recent earlier occurrence, in the request's own text,
    of its last n tokens; the longest n with an occurrence wins.

    prompt_lookup_max: longest n (default 5, or prompt_lookup_min if that is more); TensorRT-LLM's
    `max_matching_ngram_size`. prompt_lookup_min: shortest n (default 2, or prompt_lookup_max if
    that is less; vLLM's default is prompt_lookup_max).
    """

    method: ClassVar[str] = "ngram"

    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None

    def __post_init__(self) -> None:
        self._check_common()
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)
        if self.min_ngram > self.max_ngram:
            raise ConfigError(
                f"prompt_lookup_min={self.prompt_lookup_min} must be <= "
                f"prompt_lookup_max={self.prompt_lookup_max}"
            )

    @property
    def min_ngram(self) -> int:
        if self.prompt_lookup_min is not None:
            return self.prompt_lookup_min
        return min(DEFAULT_NGRAM_MIN, self.max_ngram)

    @property
    def max_ngram(self) -> int:
        if self.prompt_lookup_max is not None:
            return self.prompt_lookup_max
        return max(DEFAULT_NGRAM_MAX, self.prompt_lookup_min or 0)


@strict_config(
    aliases={**COMMON_ALIASES, **TREE_ALIASES, **MODEL_ALIASES},
    foreign={**COMMON_FOREIGN, **DRAFT_MODEL_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class DraftTargetDecodingConfig(DecodingConfig):
    """A smaller model of the same vocabulary drafts, a chain or a tree (k, D, N).

    speculative_model: directory or id of the draft checkpoint (also `model`, `draft_model`,
    `speculative_model_dir`). max_draft_len: D, draft steps (also `num_speculative_tokens`,
    `num_steps`). topk: k, candidates kept per step (also `eagle_topk`). num_draft_tokens: N, rows
    verified, the root included; at most 1 + k + (D-1)k^2. Left out, N is D + 1 for a chain (k = 1)
    and k*D + 1 for a tree, within the limit of rows.
    """

    method: ClassVar[str] = "draft_model"

    speculative_model: str | Path
    topk: int = 1
    num_draft_tokens: int = 0

    def __post_init__(self) -> None:
        self._check_common()
        object.__setattr__(self, "speculative_model", str(self.speculative_model))
        if str(self.speculative_model) in ("", "[ngram]", "ngram"):
            raise ConfigError(
                f"speculative_model={self.speculative_model!r} is not a checkpoint; for prompt "
                f'lookup write {{"method": "ngram", "num_speculative_tokens": ...}}'
            )
        depth, k = self.max_draft_len, self.topk
        if not 1 <= k <= MAX_TOPK:
            raise ConfigError(f"topk={k} must be between 1 and {MAX_TOPK}")
        if self.num_draft_tokens == 0:
            object.__setattr__(self, "num_draft_tokens", min(k * depth + 1, MAX_TREE_ROWS))
        rows = self.num_draft_tokens
        if not 2 <= rows <= MAX_TREE_ROWS:
            raise ConfigError(
                f"num_draft_tokens={rows} counts the root and at least one draft token; it must be "
                f"between 2 and {MAX_TREE_ROWS}"
            )
        capacity = k + (depth - 1) * k * k
        if rows - 1 > capacity:
            raise ConfigError(
                f"num_draft_tokens - 1 <= topk + (num_steps - 1) * topk^2 does not hold: "
                f"{rows} - 1 = {rows - 1} > {k} + ({depth} - 1) * {k}^2 = {capacity}; "
                f"lower num_draft_tokens to {capacity + 1} or raise topk or num_steps"
            )
        if k == 1 and rows != depth + 1:
            raise ConfigError(
                f"a chain (topk=1) of {depth} steps verifies num_draft_tokens={depth + 1} rows, "
                f"got {rows}; set num_steps={rows - 1} or raise topk"
            )

    @property
    def num_rows(self) -> int:
        return self.num_draft_tokens

    @property
    def num_steps(self) -> int:
        """D, the name that SGLang's users know."""
        return self.max_draft_len

    @property
    def eagle_topk(self) -> int:
        """k, the name that SGLang's users know."""
        return self.topk


METHODS: Mapping[str, type[DecodingConfig]] = {
    cls.method: cls for cls in (NGramDecodingConfig, DraftTargetDecodingConfig)
}
# Spellings of the neighbours, compared without case, "_" and "-".
_METHOD_NAMES: Mapping[str, str] = {
    "ngram": "ngram",
    "draftmodel": "draft_model",
    "drafttarget": "draft_model",
    "standalone": "draft_model",
}
_DISCRIMINATORS = ("method", "decoding_type", "speculative_algorithm")


def parse_speculative_config(
    config: Mapping[str, Any] | DecodingConfig | None,
) -> DecodingConfig | None:
    """A typed config from what a user passed: None (no speculation), a config object, or a mapping.

    The mapping names its method as vLLM does, {"method": "ngram" or "draft_model", ...}, or by
    TensorRT-LLM's `decoding_type` ("NGram", "Draft_Target"). Without either, a mapping with `model`
    is "draft_model", as in vLLM; nothing else is guessed. ConfigError for anything else.
    """
    if config is None or isinstance(config, DecodingConfig):
        return config
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"speculative_config must be None, a mapping or a DecodingConfig, "
            f"got {type(config).__name__}"
        )
    options = dict(config)
    named = {key: options.pop(key) for key in _DISCRIMINATORS if key in options}
    methods = {key: method_name(value) for key, value in named.items() if value is not None}
    if len(set(methods.values())) > 1:
        pairs = " and ".join(f"{key}={named[key]!r}" for key in methods)
        raise ConfigError(f"speculative_config names two methods: {pairs}")
    if methods:
        method = next(iter(methods.values()))
    elif any(options.get(key) is not None for key in ("speculative_model", *MODEL_ALIASES)):
        method = DraftTargetDecodingConfig.method
    else:
        raise ConfigError(
            f'speculative_config names no method; write {{"method": ..., ...}} with one of '
            f"{_available()} (a mapping with `model` alone means draft_model)"
        )
    return from_dict(METHODS[method], options)


def method_name(name: object) -> str:
    """The method that a user's spelling means ("NGRAM", "Draft_Target", ...); ConfigError lists
    the available ones for any other."""
    plain = str(name).lower().replace("_", "").replace("-", "")
    if plain in _METHOD_NAMES:
        return _METHOD_NAMES[plain]
    if plain in METHODS_ELSEWHERE or plain.endswith("mtp"):
        raise ConfigError(
            f"speculative method {name!r} is not available in this version of trtspec; "
            f"available: {_available()}"
        )
    raise ConfigError(
        f"unknown speculative method {name!r}{nearest(plain, [*METHODS, *_METHOD_NAMES])} "
        f"(available: {_available()})"
    )


def speculative_to_dict(config: DecodingConfig) -> dict[str, Any]:
    """Plain JSON values that `parse_speculative_config` takes back."""
    return {"method": config.method, **to_dict(config)}


def _available() -> str:
    return ", ".join(METHODS)


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(f"{name}={value} must be at least {low}")
