"""Every type of blocks to floats, to the bit as the gguf package does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoint_converters.containers.gguf_file import open_gguf
from checkpoint_converters.containers.safetensors_files import LazyTensors
from checkpoint_converters.quantised.gguf_blocks import unblocked
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.stored import StoredWeight

from .tiny_gguf import SCALES, TYPES, TinyGguf, random_tensor

# The last one is more than is converted at once.
SHAPES = ((1, 256), (3, 512), (5, 4, 256), (25, 41 * 256))


@pytest.mark.parametrize("kind", TYPES)
def test_all_types(kind: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tensors = {f"t{i}": random_tensor(kind, shape, random) for i, shape in enumerate(SHAPES)}
    file = TinyGguf(tensors=tensors).write(tmp_path / "tensors.gguf")
    read = unblocked(open_gguf(file).tensors)
    dtypes = {"F16": torch.float16, "BF16": torch.bfloat16}
    for (name, tensor), shape in zip(tensors.items(), SHAPES, strict=True):
        found = read[name].read()
        assert read[name].shape == found.shape == shape
        assert found.dtype == dtypes.get(kind, torch.float32)
        assert read[name].dtype == (kind if kind not in SCALES else "F32")
        assert torch.equal(found.float(), tensor.values)
        assert torch.isfinite(found).all() and found.std() > 0.01


@pytest.mark.parametrize("kind", SCALES)
def test_a_format_keeps_the_numbers(kind: str, tmp_path: Path) -> None:
    """What is rounded is an offset or a product of scales: to float16."""
    tensor = random_tensor(kind, (48, 512), np.random.default_rng(3))
    file = TinyGguf(tensors={"t": tensor}).write(tmp_path / "tensors.gguf")
    header = unblocked(open_gguf(file).tensors)["t"]
    assert header.storage is not None
    weight = StoredWeight.read(LazyTensors({"t": header}), "t")
    found = weight.quantised
    assert found is not None
    assert torch.equal(weight.floats(), tensor.values)
    format = QuantisedFormat(header.storage)
    specs = format.storage(48, 512, torch.float32)
    buffers = {name: torch.empty(s.shape, dtype=s.dtype) for name, s in specs.items()}
    format.load([weight], buffers)
    error = (format.dequantised(buffers, 48, 512) - tensor.values).abs()
    if kind in ("Q4_0", "Q5_0", "Q8_0"):
        assert not error.any()
    middle = 0 if found.zero_points is None else -found.zero_points[:, :1]
    # A minimum is kept with what the middle of the values stands for.
    least = None if found.minima is None else found.minima + middle * found.scales
    values, allowed = found.values.int().abs(), torch.zeros(48, 512)
    for part, times in ((found.scales, values), (least, 1)):
        if part is not None:
            allowed += (weight.grouped(part.abs(), 1) * 2**-11 + 2**-25) * times
    assert (error <= allowed).all()


@pytest.mark.parametrize("kind", SCALES)
def test_any_bytes(kind: str, tmp_path: Path) -> None:
    """Scales of any size, infinite ones and NaN included."""
    tensor = random_tensor(kind, (64, 256), np.random.default_rng(1))
    tensor.raw[:] = np.random.default_rng(2).integers(0, 256, tensor.raw.shape, np.uint8)
    with np.errstate(all="ignore"):
        file = TinyGguf(tensors={"t": tensor}).write(tmp_path / "tensors.gguf")
        found = unblocked(open_gguf(file).tensors)["t"].read()
        expected = tensor.values
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
