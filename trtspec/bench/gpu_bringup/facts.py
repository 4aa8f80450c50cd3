"""Part ``machine``: the GPU, its driver, compilers and versions; nothing that must be built."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import distributions
from typing import Any

import torch

from trtspec.bench.gpu_bringup.part import Place

_QUERY = "name,driver_version,memory.total,compute_cap,clocks.max.sm,clocks.max.mem,power.limit"


def run(place: Place) -> Mapping[str, Any]:
    """What is here."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "torch cuda": torch.version.cuda,
        "nvcc": first_line("nvcc", "--version", containing="release"),
        "compiler": first_line(os.environ.get("CXX") or "c++", "--version"),
        "cmake": first_line("cmake", "--version"),
        "compute-sanitizer": first_line("compute-sanitizer", "--version", containing="Version"),
        "nvidia-smi": first_line("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"),
    }
    if not place.is_rehearsal:
        found = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": found.name,
            "compute capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "memory GiB": found.total_memory / 2**30,
            "L2 MiB": found.L2_cache_size / 2**20,
        }
    packages = {f"{each.name} {each.version}" for each in distributions()}
    return {**facts, "packages": sorted(packages, key=str.lower)}


def first_line(program: str, *arguments: str, containing: str = "") -> str:
    """The first line that a program prints with such words in it; ``-`` if there is none."""
    found = shutil.which(program)
    if found is None:
        return "-"
    said = subprocess.run([found, *arguments], capture_output=True, text=True).stdout
    return next((line.strip() for line in said.splitlines() if containing in line), "-")
