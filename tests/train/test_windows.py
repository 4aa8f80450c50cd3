"""Recorded texts in batches: every row once a pass, beside its token and its states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trtspec.errors import ConfigError
from trtspec.speculative.hidden_states.files import write_hidden_states
from trtspec.train.windows import RecordedTexts

from .toy_training import LAYERS, VOCAB, WIDTH, record, texts


def test_every_row_once_a_pass(tmp_path: Path) -> None:
    data = texts(tmp_path)
    rows = []
    batches = data.batches(8, 24, seed=9)
    for batch in batches:
        widest = max(count for _, _, count in batch)
        assert widest * len(batch) <= 24 or len(batch) == 1
        rows += [(text, start + i) for text, start, count in batch for i in range(count)]
    assert len(rows) == len(set(rows))
    # A window of one row teaches nothing: the last row of a text may be left out.
    missing = data.num_tokens - len(rows)
    assert 0 <= missing <= sum(length % 8 == 1 for length in data.lengths)
    assert batches == data.batches(8, 24, seed=9) != data.batches(8, 24, seed=10)


def test_window(tmp_path: Path) -> None:
    """Tokens, states by layer, padding behind, a multiple of rows."""
    data = RecordedTexts(record(tmp_path, [5, 9, 4]), LAYERS[:2], 4)
    window = data.window([(0, 0, 5), (1, 3, 6)], row_multiple=8)
    assert window.normed and window.tokens.shape == (2, 8) and window.num_tokens == 11
    assert window.valid.tolist() == [[True] * 5 + [False] * 3, [True] * 6 + [False] * 2]
    assert window.tokens[1, :6].tolist() == [(r * 7 + 1) % VOCAB for r in range(3, 9)]
    for row, (text, start, count) in enumerate(((0, 0, 5), (1, 3, 6))):
        expected = 1000.0 * text + 10.0 * torch.arange(start, start + count)
        for column, layer in enumerate(LAYERS[:2]):
            part = window.features[row, :count, WIDTH * column]
            assert torch.equal(part, expected + layer)
        assert torch.equal(window.state[row, :count, 0], expected + 4)
        assert not window.state[row, count:].any()


def test_only_answers_count(tmp_path: Path) -> None:
    """From the row whose next token is the first that the target wrote."""
    data = RecordedTexts(record(tmp_path, [5, 9, 4]), LAYERS[:2], 4, prompts=[3, 5, 4])
    batch = [(0, 0, 5), (1, 3, 6), (2, 0, 2)]
    window = data.window(batch, answers_only=True)
    assert window.valid.tolist() == [
        [False] * 2 + [True] * 3 + [False],
        [False] + [True] * 5,
        [False] * 6,
    ]
    assert window.tokens.equal(data.window(batch).tokens) and data.window(batch).num_tokens == 13


def test_last_state_before_the_norm(tmp_path: Path) -> None:
    data = RecordedTexts(record(tmp_path, [5, 9]), LAYERS[:1], 5)  # of 5 layers, 4 is the last
    assert not data.normed


def test_refusals(tmp_path: Path) -> None:
    paths = record(tmp_path / "a", [5, 9])
    with pytest.raises(ConfigError, match="1 texts with hidden states cannot be split"):
        RecordedTexts(paths[:1], [0], 4)
    with pytest.raises(ConfigError, match=r"training needs \[1, 4\]"):
        RecordedTexts(paths, [1], 4)
    other = tmp_path / "b.safetensors"
    write_hidden_states(other, [1, 2], [torch.zeros(2, WIDTH)], [0])
    with pytest.raises(ConfigError, match="states of different layers"):
        RecordedTexts([*paths, other], [0], 4)
    other.write_bytes(b"no")
    with pytest.raises(ConfigError, match=r"b\.safetensors is no file of recorded"):
        RecordedTexts([*paths, other], [0], 4)
