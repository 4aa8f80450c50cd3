"""The devices of a machine, faked."""

from __future__ import annotations

import pytest
import torch

from trtspec.backends.device import visible_gpus
from trtspec.errors import ConfigError


@pytest.mark.parametrize(("named", "found"), [(None, ["0", "1"]), ("3,0,GPU-a", ["3", "0"])])
def test_ranks_have_the_first_gpus(
    monkeypatch: pytest.MonkeyPatch, named: str | None, found: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(2) == found
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 4 takes as many GPUs, .* finds 3"):
        visible_gpus(4)
