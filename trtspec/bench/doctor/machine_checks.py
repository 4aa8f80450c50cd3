"""The checks of a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import torch

from trtspec.backends.device import compute_capability, device_problem, free_memory, gpu_name
from trtspec.bench.doctor.check import NOTE, OK, PROBLEM, WARNING, Check
from trtspec.bench.report.floor import MachineRates
from trtspec.bench.report.machine import machine, package_version
from trtspec.builder.locate import CACHE_VARIABLE, cache_root
from trtspec.temporary import temporary_folder, temporary_trouble

COMPILERS = ("c++", "g++", "clang++")
LEAST_DISK = 4 << 30
BUSY = 0.3
"""Load by others, as a share of the cores, that makes timings doubtful."""
_REQUIREMENT = re.compile(r"""^([\w.-]+).*;.*\bextra\s*==\s*["']([\w-]+)["']""")
_DEVELOPMENT = ("test", "dev")


def machine_checks(weight_bytes: int = 0) -> list[Check]:
    """All checks without measurements; ``weight_bytes``: of the model that is to run, 0 without."""
    return [
        compiler_check(),
        temporary_check(),
        instruction_set_check(str(torch.ops.trtspec._get_isa())),
        threads_check(torch.get_num_threads(), int(machine()["usable_cores"])),
        load_check(os.getloadavg()[0], os.cpu_count() or 1),
        gpu_check(),
        *package_checks(),
        memory_check(free_memory("cpu"), weight_bytes),
        disk_check(cache_root(), max(LEAST_DISK, 2 * weight_bytes)),
    ]


def compiler_check() -> Check:
    """Engines are compiled with a C++ compiler, the one that torch finds."""
    chosen = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [chosen] if chosen else COMPILERS)), None)
    if found is None:
        return Check(
            "compiler",
            PROBLEM if chosen else WARNING,
            f"CXX names {chosen}, which is not there"
            if chosen
            else "no C++ compiler is found: models run in eager mode, slower",
            "install one (Debian, Ubuntu: apt-get install g++), or name one in CXX; engines that "
            "are built already run without",
        )
    done = subprocess.run([found, "--version"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return Check("compiler", OK, f"{found}: {lines[0] if lines else 'version unknown'}")


def temporary_check() -> Check:
    """Engines are compiled, and run, in the temporary folder."""
    trouble = temporary_trouble()
    if trouble is not None:
        return Check("temporary files", PROBLEM, trouble)
    return Check("temporary files", OK, f"{temporary_folder()} takes compiled programs")


def instruction_set_check(isa: str) -> Check:
    """The native ops choose an instruction set automatically."""
    detail = f"{isa} (torch: {torch.backends.cpu.get_cpu_capability()})"
    if isa == "generic":
        return Check(
            "instruction set", WARNING, detail, "a processor with AVX2 or AVX-512 is much faster"
        )
    return Check("instruction set", OK, detail)


def threads_check(threads: int, cores: int) -> Check:
    """One thread per core is best."""
    detail = f"{threads} for {cores} cores"
    if threads > cores:
        remedy = f"set OMP_NUM_THREADS={cores}: threads that share a core wait for each other"
        return Check("threads", WARNING, detail, remedy)
    if threads < cores:
        remedy = "unset OMP_NUM_THREADS, or raise it, unless other work needs the other cores"
        return Check("threads", NOTE, detail, remedy)
    return Check("threads", OK, detail)


def load_check(load: float, cores: int) -> Check:
    """Whether other programs use the processor."""
    detail = f"load average {load:.1f} on {cores} cores"
    if load > BUSY * cores:
        return Check(
            "load", WARNING, detail, "other work slows decoding and blurs what is measured here"
        )
    return Check("load", OK, detail)


def bandwidth_check(rates: MachineRates) -> Check:
    """The measured memory bandwidth."""
    return Check("memory speed", OK, rates.describe())


def gpu_check() -> Check:
    """A GPU is optional."""
    problem = device_problem("cuda")
    if problem is None:
        return Check("GPU", OK, f"{gpu_name()}, compute capability {compute_capability()}")
    return Check("GPU", NOTE, f"engines run on the CPU: {problem}")


def package_checks() -> list[Check]:
    """One check for each extra of trtspec."""
    try:
        lines = requires("trtspec") or []
    except PackageNotFoundError:
        return [Check("packages", NOTE, "trtspec runs from a source tree that is not installed")]
    return [extra_check(extra, found) for extra, found in extras(lines).items()]


def extras(requirements: list[str]) -> dict[str, dict[str, str | None]]:
    """The extras that users can install, by name, with their packages' versions (None: missing)."""
    found: dict[str, dict[str, str | None]] = {}
    for line in requirements:
        match = _REQUIREMENT.match(line)
        if match and match[2] not in _DEVELOPMENT:
            found.setdefault(match[2], {})[match[1]] = package_version(match[1])
    return found


def extra_check(extra: str, packages: Mapping[str, str | None]) -> Check:
    """Whether an extra is completely installed."""
    missing = [name for name, version in packages.items() if version is None]
    if missing:
        remedy = f"if you need it: pip install 'trtspec[{extra}]'"
        return Check(f"extra {extra}", NOTE, f"without {', '.join(missing)}", remedy)
    detail = ", ".join(f"{name} {version}" for name, version in packages.items())
    return Check(f"extra {extra}", OK, detail)


def memory_check(free: int, needed: int) -> Check:
    """``needed``: bytes of weights, 0 if unknown; they are copied while an engine is built."""
    detail = f"{free / 1e9:.1f} GB free"
    if not needed:
        return Check("memory", OK, detail)
    detail += f", the weights take {needed / 1e9:.1f} GB"
    if needed > free:
        return Check("memory", PROBLEM, detail, "use a smaller model or dtype, or another machine")
    if 2 * needed > free:
        return Check(
            "memory", WARNING, detail, "building holds the checkpoint and the engine: build it "
            "elsewhere, or stop other programs",
        )  # fmt: skip
    return Check("memory", OK, detail)


def disk_check(folder: Path, needed: int) -> Check:
    """Disk space for engines in the cache folder."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    detail = f"{free / 1e9:.1f} GB free for engines in {folder}"
    if free < needed:
        remedy = f"make room for {needed / 1e9:.1f} GB, or set {CACHE_VARIABLE} to another folder"
        return Check("disk", WARNING, detail, remedy)
    return Check("disk", OK, detail)
