"""The TensorRT plugins build and pass their test against the TensorRT of TENSORRT_ROOT."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.backends.tensorrt.plugins import PLUGIN_LIBRARY

ROOT = Path(__file__).resolve().parent.parent.parent
TENSORRT_ROOT = os.environ.get("TENSORRT_ROOT")


def configure(build: Path, tensorrt_root: str | Path) -> subprocess.CompletedProcess[str]:
    options = {
        "TENSORRT_ROOT": tensorrt_root,
        "TRTSPEC_PYTHON": sys.executable,
        "TRTSPEC_BUILD_TORCH": "OFF",
        "TRTSPEC_BUILD_RUNTIME": "OFF",
        "TRTSPEC_LIB_DIR": build / "lib",
        "TRTSPEC_CUDA_ARCHITECTURES": "90",
    }
    command = ["cmake", "-S", str(ROOT), "-B", str(build)]
    command += [f"-D{name}={value}" for name, value in options.items()]
    return subprocess.run(command, capture_output=True, text=True)


needs_tools = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("nvcc") is None, reason="no cmake or no nvcc"
)


@pytest.mark.slow
@needs_tools
def test_wrong_root_is_refused(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", tmp_path)
    assert done.returncode != 0
    assert "has no include/NvInferRuntime.h" in " ".join(done.stderr.split())


@needs_tools
@pytest.mark.slow
@pytest.mark.skipif(TENSORRT_ROOT is None, reason="TENSORRT_ROOT is not set")
def test_plugins_build_and_pass(tmp_path: Path) -> None:
    assert TENSORRT_ROOT is not None
    done = configure(tmp_path, TENSORRT_ROOT)
    assert done.returncode == 0, done.stderr
    targets = ["trtspec_plugins", "test_tensorrt_plugins"]
    subprocess.run(["cmake", "--build", str(tmp_path), "--target", *targets], check=True)
    subprocess.run(
        ["ctest", "--test-dir", str(tmp_path), "-R", "^test_tensorrt_plugins$", "--no-tests=error"],
        check=True,
    )
    # As TensorRT finds it: by these names, and without a library of TensorRT's.
    loaded = ctypes.CDLL(str(tmp_path / "lib" / PLUGIN_LIBRARY.name))
    count = ctypes.c_int32()
    loaded.getCreators.restype = ctypes.c_void_p
    assert loaded.getCreators(ctypes.byref(count)) and count.value == 4
    assert loaded.setLoggerFinder
