"""Access to methods that write the target's hidden states; see `Recording`."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from trtspec.config.decoding import DecodingConfig
from trtspec.config.strict import check_value
from trtspec.errors import ConfigError
from trtspec.speculative.registry import method_of, methods


def read_transfer(label: str, given: Any) -> Any:
    """vLLM's ``kv_transfer_config``, a mapping or an object, parsed by the method that it is for;
    ConfigError with the label for what none can parse."""
    classes = [each.recording.transfer for each in methods().values() if each.recording]
    return check_value(label, given, reduce(or_, [*classes, type(None)]))


def ready_to_run(config: DecodingConfig | None, transfer: Any) -> DecodingConfig | None:
    """A config with what ``kv_transfer_config`` says.

    Raises:
        ConfigError: the method has no use for ``transfer``, or lacks something.
    """
    recording = method_of(config).recording if config is not None else None
    if recording is not None:
        return recording.ready(config, transfer)
    if transfer is not None:
        takers = [name for name, method in methods().items() if method.recording]
        raise ConfigError(
            f"kv_transfer_config is for the method {' or '.join(takers)}, but the speculative "
            f"method is {config.method if config else None}; leave it out"
        )
    return config


def captured_layers(config: DecodingConfig, num_layers: int) -> tuple[int, ...]:
    """The layers of a target with that many layers whose outputs are written, usually none;
    ConfigError if they do not exist."""
    recording = method_of(config).recording
    return recording.captured_layers(config, num_layers) if recording is not None else ()


def over_engine(config: DecodingConfig, captured: tuple[int, ...]) -> DecodingConfig:
    """A config for an engine that captures the outputs of these layers; ConfigError if it asks for
    others."""
    recording = method_of(config).recording
    return config if recording is None else recording.over_engine(config, captured)
