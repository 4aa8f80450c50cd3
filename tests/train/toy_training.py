"""A head of one matrix, and recorded texts made of noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from trtspec.speculative.hidden_states.files import write_hidden_states
from trtspec.train.trainer import Schedule
from trtspec.train.windows import RecordedTexts, Window

LAYERS, WIDTH, VOCAB = (0, 2, 4), 3, 11
"""What is recorded: of a target with 4 layers, its final norm behind them."""


def record(folder: Path, lengths: Sequence[int]) -> list[Path]:
    """Texts of so many tokens; the state of row r of text i in layer l is 1000 i + 10 r + l."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, count in enumerate(lengths):
        rows = 1000.0 * number + 10.0 * torch.arange(count)[:, None, None]
        states = (rows + torch.tensor(LAYERS)[None, :, None]).expand(count, len(LAYERS), WIDTH)
        path = folder / f"{number:03}.safetensors"
        ids = ((torch.arange(count) * 7 + number) % VOCAB).tolist()
        write_hidden_states(path, ids, [states.reshape(count, -1).float()], LAYERS)
        paths.append(path)
    return paths


def texts(folder: Path, count: int = 40) -> RecordedTexts:
    return RecordedTexts(record(folder, [5 + i % 9 for i in range(count)]), LAYERS[:2], 4)


def schedule(steps: int = 12, depth: int = 3, save_seconds: float = 1e9) -> Schedule:
    return Schedule(
        steps=steps,
        length=8,
        rows=24,
        depth=depth,
        deepens=True,
        rate=1e-2,
        vocabulary_rate=1e-3,
        seed=5,
        save_seconds=save_seconds,
        log_every=4,
    )


class ToyHead:
    """Guesses the next tokens from the states, with noise like dropout's."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.module = nn.Sequential(nn.Linear(2 * WIDTH, 8), nn.LayerNorm(8), nn.Linear(8, VOCAB))
        self.depths: list[int] = []

    def loss(self, window: Window, depth: int) -> tuple[Tensor, list[float]]:
        self.depths.append(depth)
        features = window.features.float() / 1000
        logits = self.module(features + 0.01 * torch.randn(features.shape))
        parts = [
            cross_entropy(logits[:, : -1 - i].flatten(0, 1), window.tokens[:, 1 + i :].flatten())
            for i in range(depth)
        ]
        return torch.stack(parts).sum(), [1 / (1 + i) for i in range(depth)]

    def export(self, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
