"""What is recorded of a weight file, and how others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trtspec.engine.weight_record import check_weights, record_weights
from trtspec.errors import EngineError

WEIGHTS = {
    "a": torch.zeros(2, 3),
    "scalar": torch.zeros((), dtype=torch.int64),
    "empty": torch.zeros(0, 4, dtype=torch.bfloat16),
}


def write(path: Path, **changes: torch.Tensor) -> Path:
    save_file({**WEIGHTS, **changes}, path)
    return path


def test_record(tmp_path: Path) -> None:
    file = write(tmp_path / "w")
    record = record_weights(file)
    assert record == {"a": "F32 [2, 3]", "scalar": "I64 []", "empty": "BF16 [0, 4]"}
    check_weights(file, record)
    check_weights(write(tmp_path / "w", a=torch.ones(2, 3)), record)  # other values, the same kind


@pytest.mark.parametrize(
    ("other", "here"),
    [
        (torch.zeros(3, 2), r"F32 \[3, 2\]"),
        (torch.zeros(6), r"F32 \[6\]"),
        (torch.zeros(1, 3), r"F32 \[1, 3\]"),
        (torch.zeros(2, 4), r"F32 \[2, 4\]"),
        (torch.zeros(2, 3, dtype=torch.int32), r"I32 \[2, 3\]"),
        (torch.zeros(2, 3, dtype=torch.float16), r"F16 \[2, 3\]"),
    ],
)
def test_another_kind_of_tensor(tmp_path: Path, other: torch.Tensor, here: str) -> None:
    """Of as many bytes or of others: the file's value and the recorded one are named."""
    record = record_weights(write(tmp_path / "w"))
    words = rf"tensor 'a' is {here}, it was built with F32 \[2, 3\]; rebuild"
    with pytest.raises(EngineError, match=words):
        check_weights(write(tmp_path / "w", a=other), record)


def test_other_names(tmp_path: Path) -> None:
    file = write(tmp_path / "w")
    record = record_weights(file)
    with pytest.raises(EngineError, match=r"'b' is missing, it was built with F32 \[1\]"):
        check_weights(file, {**record, "b": "F32 [1]"})
    with pytest.raises(EngineError, match=r"'scalar' \(I64 \[\]\) has no use"):
        check_weights(file, {name: record[name] for name in ("a", "empty")})


@pytest.mark.parametrize("content", [b"", b"junk", b"\xff" * 9])
def test_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(EngineError, match=r"cannot be read .* rebuild"):
        record_weights(tmp_path / "w")
