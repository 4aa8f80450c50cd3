"""Which layers a draft reads: one convention inside, three outside, each pinned by numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoint_converters.capture import Capture
from checkpoint_converters.hf_config import HfConfig
from trtspec.builder.checkpoints import read_draft
from trtspec.errors import CheckpointError
from trtspec.speculative.eagle.checkpoint_layers import KEY, read_capture

from ..tiny_config import changed
from .draft_folder import TARGET, eagle3, specforge


def capture(layers: int = 32, states: int = 3, **config: Any) -> Capture:
    return read_capture(HfConfig(Path("draft"), config, {}), layers, states)


def nested(*ids: int) -> dict[str, Any]:
    return {"eagle_config": {KEY: list(ids)}}


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, (1, 15, 28)),  # EAGLE: inputs of layers 2, 16 and 29
        ({KEY: [2, 16, 29]}, (1, 15, 28)),
        (nested(1, 15, 28), (1, 15, 28)),
        ({KEY: [0, 1, 32]}, (-1, 0, 31)),
        (nested(0, 31), (0, 31)),
        (nested(4, 10, 20, 30), (4, 10, 20, 30)),
        ({KEY: [2, 16, 29], **nested(1, 15, 28)}, (1, 15, 28)),
        ({KEY: None, "eagle_config": None}, (1, 15, 28)),
        ({KEY: [], **nested()}, (1, 15, 28)),
    ],
)
def test_conventions(config: dict[str, Any], layers: tuple[int, ...]) -> None:
    assert capture(**config).layers == layers


def test_conversion_is_told() -> None:
    found = capture(**{KEY: [2, 16, 29]})
    assert found.notes == ("config.json names layer inputs 2, 16, 29, which are outputs 1, 15, 28",)
    assert capture(**nested(1, 15, 28)).notes == ()
    assert capture(**{KEY: [0, 8]}).describe() == (
        "the embeddings and outputs of layer 7 (config.json: inputs, less 1)"
    )


@pytest.mark.parametrize(
    ("ids", "layers"), [((24, 30, 36), (23, 29, 35)), ((2, 18, 33), (1, 17, 32))]
)
def test_inputs_in_eagle_config(ids: tuple[int, ...], layers: tuple[int, ...]) -> None:
    """Ids past the last layer, or EAGLE's usual ones by input, cannot be outputs."""
    found = capture(36, **nested(*ids))
    assert found.layers == layers and found.source == "eagle_config: inputs"
    assert "read as layer inputs" in found.notes[0]


def test_order_is_that_of_the_target() -> None:
    found = capture(**nested(28, 1, 15))
    assert found.layers == (1, 15, 28) and "concatenated as they run" in found.notes[0]


@pytest.mark.parametrize(
    ("layers", "states", "expected"),
    [(7, 3, (1, 2, 3)), (8, 3, (1, 3, 4)), (6, 2, (1, 2))],
)
def test_defaults_of_small_targets(layers: int, states: int, expected: tuple[int, ...]) -> None:
    assert capture(layers, states).layers == expected


@pytest.mark.parametrize(("layers", "states"), [(6, 3), (5, 3), (5, 1), (4, 2), (2, 2)])
def test_no_defaults(layers: int, states: int) -> None:
    with pytest.raises(CheckpointError, match=f"{KEY} is not given.*target of {layers} layers"):
        capture(layers, states)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({KEY: [2, 16, 33]}, r"\[2, 16, 33\].*32 layers, 0 to 32"),
        ({KEY: [-1, 2]}, r"\[-1, 2\]"),
        (nested(1, 40), r"\[1, 40\].*layers 0 to 31"),
        (nested(1, 1, 3), "names a layer twice"),
        ({KEY: 3}, "not a list of layers"),
        ({KEY: [1.5]}, "not a list of layers"),
        ({KEY: [3, 17, 29], **nested(1, 15, 28)}, r"outputs \[2, 16, 28\].*\[1, 15, 28\]"),
    ],
)
def test_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        capture(**config)


def test_width_of_fc_is_checked(tmp_path: Path) -> None:
    path = specforge(tmp_path).write(**nested(1, 3))
    with pytest.raises(CheckpointError, match=r"layers 1, 3 .*2 x 16 = 32 values.*48 inputs"):
        read_draft(path, TARGET)


def test_merged_defaults_need_the_width(tmp_path: Path) -> None:
    folder = specforge(tmp_path)
    six = changed(TARGET, num_layers=6)
    with pytest.raises(CheckpointError, match="target of 6 layers"):
        read_draft(folder.write(), six)
    folder.tensors |= eagle3(states=2)
    draft = read_draft(folder.write(), six)
    assert json.loads(json.dumps(draft.config.to_dict()))["capture_layers"] == [1, 2]
