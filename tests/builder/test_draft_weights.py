"""Weights by which no draft would be accepted: refused by name, whatever the method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trtspec.builder.checkpoints import read_draft
from trtspec.builder.draft_weights import require_weights
from trtspec.errors import CheckpointError

from ..checkpoints.draft_folder import TARGET, DraftFolder, H, V, yuhuili1, yuhuili3


def spoilt(value: float) -> Callable[[Tensor], Tensor]:
    def spoil(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return spoil


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("lm_head.weight", torch.zeros_like, r"lm_head.weight \[6, 16\] holds zeros, .*trained"),
        ("lm_head.weight", torch.ones_like, "holds one row over and over"),
        ("lm_head.weight", lambda t: t[:1].expand_as(t), "holds one row over and over"),
        ("fc.weight", torch.zeros_like, r"fc.weight \[16, 48\] holds zeros"),
        ("midlayer.mlp.up_proj.weight", spoilt(float("nan")), "up_proj.* has 1 of 384 values"),
        (
            "norm.weight",
            spoilt(float("inf")),
            r"norm.weight \[16\] has 1 of 16 .*get the file again",
        ),
        ("norm.weight", lambda t: spoilt(float("-inf"))(t).half(), "has 1 of 16"),
        # What adds to a residual may be zero.
        ("midlayer.mlp.down_proj.weight", torch.zeros_like, None),
    ],
)
def test_weights(
    tmp_path: Path, name: str, change: Callable[[Tensor], Tensor], message: str | None
) -> None:
    folder = yuhuili3(tmp_path)
    require_weights(read_draft(folder.write(), TARGET), tmp_path / "target")
    folder.tensors[name] = change(folder.tensors[name])
    draft = read_draft(folder.write(), TARGET)
    if message is None:
        require_weights(draft, tmp_path / "target")
        return
    with pytest.raises(CheckpointError, match=message):
        require_weights(draft, tmp_path / "target")


def test_a_head_of_its_own_of_another_format(tmp_path: Path) -> None:
    folder: DraftFolder = yuhuili1(tmp_path)
    folder.tensors["lm_head.weight"] = torch.zeros(V, H)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight .* holds zeros"):
        require_weights(read_draft(folder.write(), TARGET), tmp_path / "target")
