"""The contents of an engine folder's weight files, recorded when they are written and checked
before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from safetensors import SafetensorError, safe_open

from trtspec.errors import EngineError

WeightRecord: TypeAlias = Mapping[str, str]
"""Dtype and shape of every tensor of a weight file, by name: ``F32 [97, 64]``."""


def record_weights(path: Path) -> WeightRecord:
    """The record of a weight file, from its header.

    Raises:
        EngineError: it cannot be read.
    """
    record = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_slice(name)
                record[name] = f"{tensor.get_dtype()} {tensor.get_shape()}"
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"{path} cannot be read ({error}); the folder is damaged, rebuild it with trtspec-build"
        ) from error
    return record


def check_weights(path: Path, recorded: WeightRecord) -> None:
    """Refuse a weight file whose header differs from the record. Compiled engines take weights by
    name, unchecked, and would read past the end of a smaller tensor.

    Raises:
        EngineError: it cannot be read or holds other tensors; the tensor and both values are named.
    """
    found = record_weights(path)
    wrong = [name for name in recorded if found.get(name) != recorded[name]]
    unused = sorted(found.keys() - recorded.keys())
    if wrong:
        name = wrong[0]
        here = f"is {found[name]}" if name in found else "is missing"
        misfit = f"{name!r} {here}, it was built with {recorded[name]}"
    elif unused:
        misfit = f"{unused[0]!r} ({found[unused[0]]}) has no use in it"
    else:
        return
    raise EngineError(
        f"{path} does not fit its engine: tensor {misfit}; rebuild the engine with trtspec-build"
    )
