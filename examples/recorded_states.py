"""RecordedStates: hidden states that trtspec wrote while it served, as windows to train on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

KEY = "capture_layers"


@dataclass(frozen=True)
class Window:
    """Rows of several texts: ``tokens [B, T]``, which of them are text (``valid [B, T]``; padding
    stands behind it), the states that a head reads (``features [B, T, n * H]``, in the order of the
    layers), and the target's last ones (``state [B, T, H]``, ``normed`` or before the final norm).
    """

    tokens: torch.Tensor
    valid: torch.Tensor
    features: torch.Tensor
    state: torch.Tensor
    normed: bool

    def inputs(self) -> dict[str, Any]:
        """Arguments of a ModelOpt EAGLE model in its offline mode."""
        outputs = {
            "base_model_hidden_states": self.state,
            "aux_hidden_states": self.features,
            "base_hidden_prenorm": not self.normed,
        }
        return {
            "input_ids": self.tokens,
            "loss_mask": self.valid,
            "base_model_outputs": outputs,
        }


class RecordedStates:
    """The files of a folder, as the method extract_hidden_states writes them; read when needed."""

    def __init__(self, folder: Path, capture_layers: Sequence[int], target_dir: Path) -> None:
        """``capture_layers``: the outputs of the target that the head reads. SystemExit for a
        folder without files, and for one that lacks a state: those, and the output of the last
        layer or of the final norm, from which the target's distribution follows."""
        last = json.loads((target_dir / "config.json").read_text())["num_hidden_layers"]
        self._paths = sorted(folder.glob("*.safetensors"))
        if not self._paths:
            raise SystemExit(f"no files of hidden states in {folder}; record some first")
        self._lengths: list[int] = []
        found: set[tuple[int, ...]] = set()
        for path in self._paths:
            length, layers = _header(path)
            self._lengths.append(length)
            found.add(layers)
        if len(found) > 1:
            raise SystemExit(f"files in {folder} hold states of different layers: {sorted(found)}")
        (layers,) = found
        self._normed = last in layers
        wanted = [*sorted(set(capture_layers)), last if self._normed else last - 1]
        missing = [layer for layer in wanted if layer not in layers]
        if missing:
            raise SystemExit(
                f"the files in {folder} hold the outputs of layers {list(layers)}, training needs "
                f"{wanted} ({last}: the final norm; {last - 1} would do as well); record them all"
            )
        self._columns = [layers.index(layer) for layer in wanted]

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def num_tokens(self) -> int:
        return sum(self._lengths)

    def windows(self, length: int, rows: int, seed: int) -> Iterator[Window]:
        """For ever: ``rows`` windows of at most ``length`` consecutive rows, in a random order."""
        starts = [
            (file, start)
            for file, count in enumerate(self._lengths)
            for start in range(0, max(count - 1, 1), length)
        ]
        generator = torch.Generator().manual_seed(seed)
        order: list[int] = []
        while True:
            while len(order) < rows:
                order += torch.randperm(len(starts), generator=generator).tolist()
            picked, order = order[:rows], order[rows:]
            yield self._window([starts[i] for i in picked], length)

    def _window(self, picked: Sequence[tuple[int, int]], length: int) -> Window:
        tokens = torch.zeros(len(picked), length, dtype=torch.int64)
        valid = torch.zeros(len(picked), length, dtype=torch.bool)
        states: torch.Tensor | None = None
        for row, (file, start) in enumerate(picked):
            with safe_open(self._paths[file], framework="pt") as opened:
                ids = opened.get_slice("token_ids")[start : start + length]
                part = opened.get_slice("hidden_states")[start : start + length]
            if states is None:
                states = torch.zeros(len(picked), length, len(self._columns), part.shape[-1])
            tokens[row, : len(ids)] = ids
            valid[row, : len(ids)] = True
            states[row, : len(ids)] = part[:, self._columns].float()
        assert states is not None
        features = states[:, :, :-1].flatten(2)
        return Window(tokens, valid, features, states[:, :, -1], self._normed)


def _header(path: Path) -> tuple[int, tuple[int, ...]]:
    """(tokens, layers) of a file; SystemExit if it is none of ours."""
    try:
        with safe_open(path, framework="pt") as file:
            layers = tuple(json.loads((file.metadata() or {})[KEY]))
            return file.get_slice("hidden_states").get_shape()[0], layers
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise SystemExit(f"{path} is no file of recorded hidden states: {error}") from error
