"""Part ``build``: the ops and their CUDA kernels, for the torch that is here."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trtspec.bench.gpu_bringup.part import PartFailed, PartSkipped, Place
from trtspec.child_python import PYTHON, python_environment

_SOURCES = ("setup.py", "CMakeLists.txt", "cpp", "plugins")
_ARCHITECTURES = "TRTSPEC_CUDA_ARCHITECTURES"


def run(place: Place) -> Mapping[str, Any]:
    """Build them into the source tree, unless they are there; a wheel has them built."""
    lib = place.root / "trtspec" / "lib"
    names = ["build_info.json", *([] if place.is_rehearsal else ["cuda_build_info.json"])]
    found = {name: built_for(lib / name) for name in names}
    here = torch.__version__.split("+")[0]
    if all(version == here for version in found.values()):
        return {"built": False, **found}
    if place.is_rehearsal:
        raise PartSkipped(f"{lib} holds no ops for torch {here}; install trtspec")
    place.require(*_SOURCES)
    began = time.perf_counter()
    # For this GPU alone: code for all others takes minutes.
    environment = python_environment(**{_ARCHITECTURES: os.environ.get(_ARCHITECTURES, "native")})
    command = [PYTHON, "setup.py", "build_ext", "--inplace"]
    if subprocess.run(command, cwd=place.root, env=environment).returncode:
        raise PartFailed("the ops do not build; see logs/build.txt")
    missing = [name for name in names if built_for(lib / name) != here]
    if missing:
        raise PartFailed(f"the build made no {', '.join(missing)}; see logs/build.txt")
    return {"built": True, "build seconds": time.perf_counter() - began, **spills(place.root)}


def built_for(info: Path) -> str:
    """The version of torch that a library was built for; empty if it is not there."""
    try:
        return str(json.loads(info.read_text())["torch_version"]).split("+")[0]
    except (OSError, ValueError, KeyError):
        return ""


def spills(root: Path) -> dict[str, Any]:
    """Of how many kernels ptxas says that registers went to memory."""
    reports = (root / "build").rglob("ptxas/*")
    lines = [
        line.strip()
        for report in reports
        if report.is_file()
        for line in report.read_text(errors="replace").splitlines()
        if "spill stores" in line and " 0 bytes spill stores" not in line
    ]
    return {"kernels that spill": len(lines)}
