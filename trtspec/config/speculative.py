"""`parse_speculative_config`: one config class per speculative method, from what users write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trtspec.config.auto import AutoDecodingConfig
from trtspec.config.decoding import DecodingConfig, NGramDecodingConfig
from trtspec.config.dflash_decoding import DDTreeDecodingConfig, DFlashDecodingConfig
from trtspec.config.extract_hidden_states import ExtractHiddenStatesConfig
from trtspec.config.hybrid import HybridDecodingConfig
from trtspec.config.medusa_decoding import MedusaDecodingConfig
from trtspec.config.mtp_decoding import MtpDecodingConfig
from trtspec.config.parallel_decoding import PardDecodingConfig, PEagleDecodingConfig
from trtspec.config.speculative_keys import METHODS_ELSEWHERE, MODEL_ALIASES
from trtspec.config.strict import from_dict, key_rules, nearest, to_dict
from trtspec.config.suffix_decoding import SuffixDecodingConfig
from trtspec.config.tree_decoding import (
    DraftTargetDecodingConfig,
    Eagle3DecodingConfig,
    EagleDecodingConfig,
    TreeDecodingConfig,
)
from trtspec.errors import ConfigError

__all__ = [
    "METHODS",
    "NO_METHOD",
    "AutoDecodingConfig",
    "DDTreeDecodingConfig",
    "DFlashDecodingConfig",
    "DecodingConfig",
    "DraftTargetDecodingConfig",
    "Eagle3DecodingConfig",
    "EagleDecodingConfig",
    "ExtractHiddenStatesConfig",
    "HybridDecodingConfig",
    "MedusaDecodingConfig",
    "MtpDecodingConfig",
    "NGramDecodingConfig",
    "PEagleDecodingConfig",
    "PardDecodingConfig",
    "SuffixDecodingConfig",
    "TreeDecodingConfig",
    "method_name",
    "methods_taking",
    "names_no_method",
    "parse_speculative_config",
    "speculative_to_dict",
]

METHODS: Mapping[str, type[DecodingConfig]] = {
    cls.method: cls
    for cls in (
        NGramDecodingConfig,
        SuffixDecodingConfig,
        DraftTargetDecodingConfig,
        EagleDecodingConfig,
        Eagle3DecodingConfig,
        MedusaDecodingConfig,
        MtpDecodingConfig,
        PardDecodingConfig,
        PEagleDecodingConfig,
        DFlashDecodingConfig,
        DDTreeDecodingConfig,
        ExtractHiddenStatesConfig,
        HybridDecodingConfig,
        AutoDecodingConfig,
    )
}
NO_METHOD = "none"
"""What users write for no speculation."""
# Spellings of the neighbours, compared without case, "_" and "-".
_METHOD_NAMES: Mapping[str, str] = {
    "auto": "auto",
    "ngram": "ngram",
    "suffix": "suffix",
    "suffixdecoding": "suffix",
    "draftmodel": "draft_model",
    "drafttarget": "draft_model",
    "standalone": "draft_model",
    "eagle": "eagle",
    "eagle1": "eagle",
    "eagle2": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "mtpeagle": "mtp",
    "nextn": "mtp",
    "pard": "pard",
    "peagle": "p_eagle",
    "dflash": "dflash",
    "ddtree": "ddtree",
    "extracthiddenstates": "extract_hidden_states",
    "hybrid": "hybrid",
}
# What vLLM's `parallel_drafting` makes of a method.
_PARALLEL: Mapping[str, str] = {"draft_model": "pard", "eagle3": "p_eagle"}
_DISCRIMINATORS = ("method", "decoding_type", "speculative_algorithm")


def parse_speculative_config(
    config: Mapping[str, Any] | DecodingConfig | None,
) -> DecodingConfig | None:
    """A typed config from what a user passed: None (no speculation), a config object, or a mapping.

    The mapping names one of `METHODS` as vLLM does, {"method": "ngram", ...}, by TensorRT-LLM's
    `decoding_type` (such as "Draft_Target") or by SGLang's `speculative_algorithm` (such as
    "STANDALONE"). The method "none" is no speculation. vLLM's `parallel_drafting` turns draft_model
    into pard and eagle3 into p_eagle. Without any, a mapping with `model` is "draft_model", as in
    vLLM; nothing else is guessed.
    ConfigError for anything else.
    """
    if config is None or isinstance(config, DecodingConfig):
        return config
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"speculative_config must be None, a mapping or a DecodingConfig, "
            f"got {type(config).__name__}"
        )
    options = dict(config)
    if names_no_method(config):
        others = [k for k, v in options.items() if k not in _DISCRIMINATORS and v is not None]
        if others:
            raise ConfigError(
                f"speculative method {NO_METHOD} is no speculation, but {', '.join(others)} was "
                "given; leave it out, or name a method"
            )
        return None
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
    if method == HybridDecodingConfig.method:
        options["drafters"] = _members(options.get("drafters"))
    if options.get("parallel_drafting") is True:
        method = _PARALLEL.get(method, method)
    return from_dict(METHODS[method], options)


def names_no_method(config: object) -> bool:
    """Whether a mapping says by its method that nothing is to be drafted, even by the draft that an
    engine folder holds."""
    if not isinstance(config, Mapping):
        return False
    named = {str(config[k]).lower() for k in _DISCRIMINATORS if config.get(k) is not None}
    return named == {NO_METHOD}


def methods_taking(option: str) -> list[str]:
    """The methods whose configs have that option, by whichever name."""
    return [
        name
        for name, cls in METHODS.items()
        if option in key_rules(cls).aliases or any(f.name == option for f in fields(cls))
    ]


def _members(drafters: object) -> list[DecodingConfig]:
    """The configs of a hybrid; errors name the one that they are about."""
    if not isinstance(drafters, (list, tuple)):
        raise ConfigError(
            'the method hybrid needs `drafters`, a list of configs such as [{"method": "suffix"}, '
            f'{{"method": "eagle3", "model": ...}}], got {drafters!r:.80}'
        )
    members: list[DecodingConfig] = []
    for i, drafter in enumerate(drafters):
        try:
            member = parse_speculative_config(drafter)
        except ConfigError as error:
            method = drafter.get("method") if isinstance(drafter, Mapping) else None
            label = f"drafters[{i}]" + (f" ({method})" if method else "")
            raise ConfigError(f"{label}: {error}") from error
        if member is None:
            raise ConfigError(f"drafters[{i}] is None; give the config of a method")
        members.append(member)
    return members


def method_name(name: object) -> str:
    """The method that a user's spelling means ("NGRAM", "Draft_Target", ...); ConfigError lists
    the available ones for any other."""
    plain = str(name).lower().replace("_", "").replace("-", "")
    if plain in _METHOD_NAMES:
        return _METHOD_NAMES[plain]
    if plain in METHODS_ELSEWHERE:
        raise ConfigError(
            f"speculative method {name!r} is not available in this version of trtspec; "
            f"available: {_available()}"
        )
    if plain.endswith("mtp"):  # deepseek_mtp, mimo_mtp and so on: the checkpoint says which
        return MtpDecodingConfig.method
    near = nearest(plain, [*METHODS, *_METHOD_NAMES, NO_METHOD])
    raise ConfigError(f"unknown speculative method {name!r}{near} (available: {_available()})")


def speculative_to_dict(config: DecodingConfig) -> dict[str, Any]:
    """Plain JSON values that `parse_speculative_config` takes back."""
    options = {"method": config.method, **to_dict(config)}
    if isinstance(config, HybridDecodingConfig):
        options["drafters"] = [speculative_to_dict(member) for member in config.drafters]
    return options


def _available() -> str:
    return ", ".join((*METHODS, NO_METHOD))
