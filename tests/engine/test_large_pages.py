"""Weights that were copied to memory of large pages are those of the file."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest
import torch

from trtspec.engine.memory import in_large_pages


def test_copies_are_equal_aligned_and_their_own() -> None:
    weights = {
        "bytes": torch.arange(-7, 6, dtype=torch.int8),
        "none": torch.empty(0, 4),
        "one": torch.tensor(3.5, dtype=torch.float16),
        "rows": torch.randn(33, 7).bfloat16(),
        "ids": torch.arange(5),
    }
    copies = in_large_pages(weights)
    assert list(copies) == list(weights)
    for name, weight in weights.items():
        assert copies[name].dtype == weight.dtype and torch.equal(copies[name], weight)
        assert copies[name].data_ptr() % 64 == 0
    weights["ids"].zero_()
    kept = copies.pop("ids")
    del copies
    gc.collect()
    assert kept.tolist() == [0, 1, 2, 3, 4]


def test_nothing_to_copy() -> None:
    assert in_large_pages({}) == {}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="pages are counted by Linux")
def test_memory_is_the_process_own() -> None:
    copies = in_large_pages({"weight": torch.ones(1 << 20)})
    address = copies["weight"].data_ptr()
    shared = [
        line.split()[1]
        for line in Path("/proc/self/smaps").read_text().splitlines()
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line)
        and int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
    ]
    assert shared == ["rw-p"]  # memory that is shared is not given large pages
