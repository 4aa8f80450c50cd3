"""Which op libraries are loaded: the CUDA one only where a device and the library are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trtspec.errors import BuildError
from trtspec.ops import native


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", names.append)
    return names


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libtrtspec_cuda_ops.so"
    path.write_bytes(b"")
    info = {"torch_version": torch.__version__, "cuda_version": "13.0", "architectures": "90"}
    (tmp_path / "cuda_build_info.json").write_text(json.dumps(info))
    return path


def has_device(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)


def test_loaded_with_a_device(
    monkeypatch: pytest.MonkeyPatch, loaded: list[str], library: Path
) -> None:
    has_device(monkeypatch, True)
    assert native.load_cuda_library(library)
    assert loaded == [str(library)]


def test_not_loaded_without_a_device_or_library(
    monkeypatch: pytest.MonkeyPatch, loaded: list[str], library: Path
) -> None:
    has_device(monkeypatch, False)
    assert not native.load_cuda_library(library)
    has_device(monkeypatch, True)
    assert not native.load_cuda_library(library.with_name("missing.so"))
    assert loaded == []


def test_library_of_another_torch(
    monkeypatch: pytest.MonkeyPatch, loaded: list[str], library: Path
) -> None:
    has_device(monkeypatch, True)
    info = library.with_name("cuda_build_info.json")
    info.write_text(json.dumps({"torch_version": "1.2.3+cu100"}))
    with pytest.raises(BuildError, match=r"built for torch 1\.2\.3\+cu100"):
        native.load_cuda_library(library)
    info.unlink()
    with pytest.raises(BuildError, match=r"cuda_build_info\.json beside"):
        native.load_cuda_library(library)
    assert loaded == []


@pytest.mark.gpu
@pytest.mark.skipif(not native.HAS_CUDA_OPS, reason="no CUDA device, or no CUDA ops were built")
def test_ops_run_on_the_device() -> None:
    sampled = torch.tensor([5, 7, 9], device="cuda")
    tokens = torch.tensor([0, 5, 7], device="cuda")
    parents = torch.tensor([-1, 0, 1], dtype=torch.int32, device="cuda")
    row_start = torch.tensor([0, 3], dtype=torch.int32, device="cuda")
    rows, emitted = torch.ops.trtspec.accept(sampled, tokens, parents, row_start)
    assert rows.tolist() == [[0, 1, 2]] and emitted.tolist() == [3]
    with pytest.raises(RuntimeError, match="parents must be on cuda"):
        torch.ops.trtspec.accept(sampled, tokens, parents.cpu(), row_start)
