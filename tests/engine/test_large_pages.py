"""Weights that were copied to memory of large pages are those of the file."""

from __future__ import annotations

import gc
import re
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trtspec.engine.folder import read_weights
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


def test_readers_of_a_file_share_its_memory(tmp_path: Path) -> None:
    file, other = tmp_path / "weights.safetensors", tmp_path / "other.safetensors"
    for path in (file, other):
        save_file({"ids": torch.arange(5), "none": torch.empty(0, 4)}, path)
    first = read_weights(file)
    second, another = read_weights(file), read_weights(other)
    assert second["ids"].tolist() == another["ids"].tolist() == [0, 1, 2, 3, 4]
    assert second["ids"].data_ptr() == first["ids"].data_ptr() != another["ids"].data_ptr()
    del first
    gc.collect()
    assert second["ids"].tolist() == [0, 1, 2, 3, 4]
    # A file that takes the place of another is read, as is one that is written over.
    other.replace(file)
    assert read_weights(file)["ids"].data_ptr() == another["ids"].data_ptr()
    save_file({"ids": torch.arange(5, 10), "none": torch.empty(0, 4)}, file)
    assert read_weights(file)["ids"].tolist() == [5, 6, 7, 8, 9]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux counts pages there")
def test_memory_goes_with_its_last_tensor(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"ids": torch.arange(1 << 23), "row": torch.arange(5)}, file)

    def pages() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = pages()
    row, more = read_weights(file)["row"], read_weights(file)
    whole = (1 << 26) // resource.getpagesize()
    assert pages() - before > 0.9 * whole
    del more
    assert pages() - before > 0.9 * whole and row.tolist() == [0, 1, 2, 3, 4]
    del row
    assert pages() - before < 0.1 * whole


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
