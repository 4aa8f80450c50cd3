"""Training checkpoints: written atomically, and only loaded by the training that they belong to."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trtspec.builder.made_for import MADE_FOR
from trtspec.errors import ConfigError, TrainingError
from trtspec.writable import write_whole

_STATE = "state.pt"


def claim(folder: Path, facts: Mapping[str, Any]) -> None:
    """Make ``folder`` belong to a training with these facts, or check that it does.

    Raises:
        ConfigError: it holds another training's state; differences are named with both values.
        OSError: it cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MADE_FOR
    wanted = json.loads(json.dumps(facts))
    if not path.exists():
        write_whole(path, (json.dumps(wanted, indent=1) + "\n").encode())
        return
    found = json.loads(path.read_text())
    differ = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    if differ:
        what = "; ".join(f"{key} {found.get(key)!r}, not {wanted.get(key)!r}" for key in differ)
        raise ConfigError(
            f"{folder} holds the state of another training: {what}; give another --state folder, "
            "or remove this one"
        )


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the state in ``folder``; TrainingError if there is no room, and the older one
    stays."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    try:
        write_whole(folder / _STATE, buffer.getvalue())
    except OSError as error:
        raise TrainingError(
            f"the training's state ({buffer.tell() / 1e6:.0f} MB) cannot be written to {folder}: "
            f"{error}; the state before is kept: make room and run the same command again to go on "
            "from there"
        ) from error


def load_state(folder: Path) -> dict[str, Any] | None:
    """The last saved state; None if there is none.

    Raises:
        TrainingError: it cannot be read.
    """
    path = folder / _STATE
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise TrainingError(
            f"{path} is no whole state of a training ({type(error).__name__}); remove it to train "
            "from the beginning"
        ) from error
    return state
