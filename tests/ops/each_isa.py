"""A fixture that runs a test once for each instruction set of this processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


def each_isa(*names: str) -> Any:
    """A fixture whose value is each of these sets in turn, chosen for all ops while a test runs;
    skipped where the processor lacks it."""

    @pytest.fixture(params=names)
    def isa(request: pytest.FixtureRequest) -> Iterator[str]:
        before = torch.ops.trtspec._set_isa(request.param)
        if torch.ops.trtspec._get_isa() != request.param:
            torch.ops.trtspec._set_isa(before)
            pytest.skip(f"this processor has no {request.param}")
        yield request.param
        torch.ops.trtspec._set_isa(before)

    return isa
