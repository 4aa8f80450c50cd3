"""The kernels compile with NVRTC, and agree with what Python thinks of them, without a GPU."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from trtspec.errors import BuildError
from trtspec.ops import cuda_driver, cuda_launch
from trtspec.ops.cuda_launch import SOURCES, compile_kernels
from trtspec.ops.cuda_params import AcceptParams, MaskValues8, Parameters, layout_checks

needs_nvrtc = pytest.mark.skipif(
    not cuda_driver.is_available(), reason="cuda-python or NVRTC is not installed (trtspec[cuda])"
)
ELF = b"\x7fELF"


class Swapped(Parameters):
    """`MaskValues8` in another order."""

    _fields_ = (("hidden", ctypes.c_uint8), ("seen", ctypes.c_uint8))


@needs_nvrtc
@pytest.mark.parametrize("architecture", [80, 90, 100, 120])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "sampling.cu" else name
        for name in SOURCES
    ],
)
def test_sources_compile(name: str, architecture: int) -> None:
    compiled = compile_kernels(SOURCES[name], architecture)
    assert compiled.image.startswith(ELF)
    assert len(compiled.names) == len(SOURCES[name].kernels)
    for kernel, lowered in compiled.names.items():
        assert lowered.encode() in compiled.image, kernel


@needs_nvrtc
def test_unknown_architectures() -> None:
    newer = compile_kernels(SOURCES["accept.cu"], 999)
    assert b".target" in newer.image  # PTX, for the driver to compile
    with pytest.raises(BuildError, match=r"compute capability 5\.0"):
        compile_kernels(SOURCES["accept.cu"], 50)


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "checks", "said"),
    [
        ("accept.cu", [("sizeof(AcceptParams)", 8)], r"cuda_launch\.py has 8"),
        ("kv_compact.cu", layout_checks("Moves", AcceptParams), "kv_compact.cu does not compile"),
        ("tree_mask.cu", layout_checks("MaskValues<unsigned char>", Swapped), "does not compile"),
        ("tree_mask.cu", layout_checks("MaskValues<unsigned int>", MaskValues8), "has 2"),
    ],
    ids=["size", "fields", "order", "element"],
)
def test_disagreement_is_refused(name: str, checks: Iterable[tuple[str, int]], said: str) -> None:
    source = dataclasses.replace(SOURCES[name], checks=(*SOURCES[name].checks, *checks))
    with pytest.raises(BuildError, match=said):
        compile_kernels(source, 90)


def test_missing_compiler_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "nvrtc", None)
    assert not cuda_driver.is_available()
    with pytest.raises(BuildError, match=r"pip install trtspec\[cuda\]"):
        compile_kernels(SOURCES["accept.cu"], 90)
    with pytest.raises(BuildError, match=r"trtspec\[cuda\]"):
        cuda_launch.kernels_of(0)


def test_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cuda_driver.is_available():
        pytest.skip("cuda-python is not installed")

    def no_library(flags: int) -> tuple[int]:
        raise RuntimeError("libcuda.so.1 not found")

    monkeypatch.setattr(cuda_driver.driver, "cuInit", no_library)
    with pytest.raises(BuildError, match="no CUDA driver on this machine"):
        cuda_driver.Device(0)


def test_missing_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_launch, "SOURCE_ROOTS", (tmp_path,))
    with pytest.raises(BuildError, match="sources of the CUDA kernels"):
        compile_kernels(SOURCES["accept.cu"], 90)
