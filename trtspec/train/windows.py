"""RecordedTexts: texts with the target's hidden states, in batches of windows to train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.speculative.hidden_states.files import read_header

HELD_OUT = 32
"""One text in this many is never trained on."""
_POOL = 64


@dataclass(frozen=True)
class Window:
    """Rows of several texts: ``tokens [B, T] i64``, which of them count (``valid [B, T] bool``:
    text, followed by padding), the hidden states that a head reads (``features [B, T, n * H]``, in
    layer order), and the target's last ones (``state [B, T, H]``, ``normed`` or before the final
    norm)."""

    tokens: Tensor
    valid: Tensor
    features: Tensor
    state: Tensor
    normed: bool

    @property
    def num_tokens(self) -> int:
        return int(self.valid.sum())

    def to(self, device: str) -> Window:
        return Window(
            self.tokens.to(device),
            self.valid.to(device),
            self.features.to(device),
            self.state.to(device),
            self.normed,
        )


Piece = tuple[int, int, int]
"""File, first row, number of rows."""


class RecordedTexts:
    """Files as written by the method that records hidden states, in the given order, read on
    demand; one text in `HELD_OUT` is held out, and at least one."""

    def __init__(
        self,
        paths: Sequence[Path],
        capture_layers: Sequence[int],
        num_layers: int,
        prompts: Sequence[int] | None = None,
    ) -> None:
        """``capture_layers``: the outputs of the target that the head reads; ``num_layers``: the
        target's. ``prompts``: the first rows of each text that the target did not write; None: not
        known, as if there were none.

        Raises:
            ConfigError: there are fewer than two files, one is none of ours, or they lack a state:
                those of ``capture_layers`` and the output of the last layer or of the final norm,
                from which the target's distribution follows.
        """
        if len(paths) < 2:
            raise ConfigError(
                f"{len(paths)} texts with hidden states cannot be split into some to train on and "
                "some that are held out; record at least 2"
            )
        self._paths = list(paths)
        self._prompts = [0] * len(paths) if prompts is None else list(prompts)
        headers = [read_header(path) for path in paths]
        self.lengths = [length for length, _ in headers]
        found = {layers for _, layers in headers}
        folder = paths[0].parent
        if len(found) > 1:
            raise ConfigError(
                f"files in {folder} hold states of different layers: {sorted(found)}; keep those "
                "of one recording"
            )
        (layers,) = found
        self.normed = num_layers in layers
        wanted = [*capture_layers, num_layers if self.normed else num_layers - 1]
        missing = [layer for layer in wanted if layer not in layers]
        if missing:
            raise ConfigError(
                f"the files in {folder} hold the outputs of layers {list(layers)}, training needs "
                f"{wanted} ({num_layers}: the final norm; {num_layers - 1} would do as well); "
                "record them all: capture_layers takes the name of the trained method, too"
            )
        self._columns = [layers.index(layer) for layer in wanted]
        held = set(range(HELD_OUT - 1, len(paths), HELD_OUT)) or {len(paths) - 1}
        self.held_out = sorted(held)
        self.trained = [i for i in range(len(paths)) if i not in held]

    @property
    def num_tokens(self) -> int:
        """Rows to train on."""
        return sum(self.lengths[i] for i in self.trained)

    def token_ids(self, text: int) -> Tensor:
        with safe_open(self._paths[text], framework="pt") as file:
            ids: Tensor = file.get_tensor("token_ids")
        return ids

    def batches(self, length: int, rows: int, seed: int | None) -> list[list[Piece]]:
        """One pass over the training texts, in batches of windows of at most ``length`` rows, about
        ``rows`` rows per batch including padding. ``seed``: of the order; None: the held-out texts,
        in their own order. Windows of similar lengths share a batch, so that there is little
        padding."""
        texts = self.held_out if seed is None else self.trained
        pieces = [
            (text, start, min(length, self.lengths[text] - start))
            for text in texts
            for start in range(0, max(self.lengths[text] - 1, 1), length)
        ]
        if seed is None:
            return list(_packed(pieces, rows))
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(pieces), generator=generator).tolist()
        batches: list[list[Piece]] = []
        for start in range(0, len(order), _POOL):
            pool = sorted((pieces[i] for i in order[start : start + _POOL]), key=lambda p: p[2])
            batches += _packed(pool, rows)
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [batches[i] for i in shuffled]

    def window(
        self, batch: Sequence[Piece], row_multiple: int = 1, answers_only: bool = False
    ) -> Window:
        """The contents of the pieces, with as many columns as the longest, rounded up to a
        multiple. ``answers_only``: only rows whose next token the target wrote are valid."""
        width = max(count for _, _, count in batch)
        width = -(-width // row_multiple) * row_multiple
        tokens = torch.zeros(len(batch), width, dtype=torch.int64)
        valid = torch.zeros(len(batch), width, dtype=torch.bool)
        states: Tensor | None = None
        for row, (text, start, count) in enumerate(batch):
            with safe_open(self._paths[text], framework="pt") as file:
                ids = file.get_slice("token_ids")[start : start + count]
                part = file.get_slice("hidden_states")[start : start + count]
            if states is None:
                shape = len(batch), width, len(self._columns), part.shape[-1]
                states = torch.zeros(shape, dtype=part.dtype)
            tokens[row, :count] = ids
            first = max(self._prompts[text] - 1 - start, 0) if answers_only else 0
            valid[row, first:count] = True
            states[row, :count] = part[:, self._columns]
        assert states is not None
        return Window(tokens, valid, states[:, :, :-1].flatten(2), states[:, :, -1], self.normed)


def _packed(pieces: Sequence[Piece], rows: int) -> Iterator[list[Piece]]:
    """Consecutive pieces that fill about ``rows`` rows as wide as the widest."""
    batch: list[Piece] = []
    for piece in pieces:
        widest = max(piece[2], *(each[2] for each in batch), 0)
        if batch and widest * (len(batch) + 1) > rows:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch
