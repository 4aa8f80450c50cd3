"""`parse_speculative_config`: from user input to a method's config class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trtspec.config.decoding import DecodingConfig
from trtspec.config.speculative_keys import MODEL_ALIASES
from trtspec.config.strict import from_dict, to_dict
from trtspec.errors import ConfigError
from trtspec.speculative.registry import DEFAULT, NO_METHOD, method_name, method_names, methods

MODEL_KEYS = ("speculative_model", *MODEL_ALIASES)
"""Keys by which a mapping names a draft checkpoint."""
_DISCRIMINATORS = ("method", "decoding_type", "speculative_algorithm")


def parse_speculative_config(
    config: Mapping[str, Any] | DecodingConfig | None,
) -> DecodingConfig | None:
    """A typed config from user input: None (no speculation), a config object, or a mapping.

    The mapping names one of `methods` as in vLLM, {"method": "ngram", ...}, by TensorRT-LLM's
    `decoding_type` (such as "Draft_Target") or by SGLang's `speculative_algorithm` (such as
    "STANDALONE"). The method "none" is no speculation. vLLM's `parallel_drafting` turns draft_model
    into pard and eagle3 into p_eagle. A mapping without a method but with a `model` is
    "draft_model", as in vLLM; nothing else is guessed. ConfigError for anything else.
    """
    if config is None or isinstance(config, DecodingConfig):
        return config
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"speculative_config must be None, a mapping or a DecodingConfig, "
            f"got {type(config).__name__}"
        )
    # Programs write keys as their flags are written.
    options = {k.replace("-", "_") if isinstance(k, str) else k: v for k, v in config.items()}
    if len(options) < len(config):
        raise ConfigError(f"speculative_config has a key twice, with - and _: {sorted(config)}")
    if names_no_method(config):
        others = [k for k, v in options.items() if k not in _DISCRIMINATORS and v is not None]
        if others:
            raise ConfigError(
                f"speculative method {NO_METHOD} is no speculation, but {', '.join(others)} was "
                "given; leave it out, or name a method"
            )
        return None
    named = {key: options.pop(key) for key in _DISCRIMINATORS if key in options}
    found = {key: method_name(value) for key, value in named.items() if value is not None}
    if len(set(found.values())) > 1:
        pairs = " and ".join(f"{key}={named[key]!r}" for key in found)
        raise ConfigError(f"speculative_config names two methods: {pairs}")
    if found:
        method = next(iter(found.values()))
    elif any(options.get(key) is not None for key in MODEL_KEYS):
        method = DEFAULT
    else:
        raise ConfigError(
            f'speculative_config names no method; write {{"method": ..., ...}} with one of '
            f"{', '.join(method_names())} (a mapping with `model` alone means {DEFAULT})"
        )
    chosen = methods()[method].options
    if options.get("parallel_drafting") is True:
        parallel = (each for each in methods().values() if each.parallel_of is chosen)
        chosen = next((each.options for each in parallel), chosen)
    _refuse_model_words(chosen, options)
    prepare = methods()[chosen.method].prepare
    return from_dict(chosen, prepare(options, parse_speculative_config) if prepare else options)


def _refuse_model_words(chosen: type[DecodingConfig], options: Mapping[str, Any]) -> None:
    """Words that stand for a method without a draft cannot name another method's checkpoint."""
    words = {word: each for each in methods().values() for word in each.model_words}
    model = next((options[key] for key in MODEL_KEYS if options.get(key) is not None), None)
    meant = words.get(model) if isinstance(model, str) else None
    if meant is not None and meant.options is not chosen:
        raise ConfigError(
            f"speculative_model={model!r} is not a checkpoint; for {meant.title} write "
            f'{{"method": "{meant.name}", "num_speculative_tokens": ...}}'
        )


def names_no_method(config: object) -> bool:
    """Whether a mapping's method says that nothing is to be drafted, even with a draft in the
    engine folder."""
    if not isinstance(config, Mapping):
        return False
    named = {str(config[k]).lower() for k in _DISCRIMINATORS if config.get(k) is not None}
    return named == {NO_METHOD}


def speculative_to_dict(config: DecodingConfig) -> dict[str, Any]:
    """Plain JSON values, the inverse of `parse_speculative_config`."""
    options = {"method": config.method, **to_dict(config)}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple) and any(isinstance(each, DecodingConfig) for each in value):
            options[field.name] = [speculative_to_dict(member) for member in value]
    return options
