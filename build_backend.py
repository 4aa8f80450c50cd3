"""setuptools' build backend, with one choice more: which torch the ops are compiled against.

An isolated build does not see the packages of the environment that it installs into. torch is the
largest of them, and its builds for CPUs and for CUDA have the same version: so the environment's
own is used where it has one that fits, and one is asked for only where it has not.
"""

from __future__ import annotations

import runpy
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

TORCH = SpecifierSet(">=2.11,<2.14")
"""The versions that the sources compile against."""


@dataclass(frozen=True)
class Torch:
    """An installed torch. folder: its package. cuda: the version of its CUDA, or None for CPUs."""

    folder: Path
    version: Version
    cuda: str | None

    @property
    def requirement(self) -> str:
        """What may run that was compiled against it: its C++ ABI holds for a minor version."""
        return f"torch=={self.version.major}.{self.version.minor}.*"


def find_torch() -> Torch | None:
    """The torch of the running interpreter, else that of the environment which an isolated build
    hides from it; None if there is none that fits."""
    spec = find_spec("torch")
    hidden = Path(sysconfig.get_path("purelib")) / "torch"
    for package in (Path(spec.origin).parent if spec and spec.origin else hidden, hidden):
        facts = package / "version.py"
        if facts.is_file():
            names = runpy.run_path(str(facts))
            found = Torch(package, Version(names["__version__"]), names.get("cuda"))
            if found.version.base_version in TORCH:
                return found
    return None


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return _with_torch(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return _with_torch(build_meta.get_requires_for_build_editable(config_settings))


def _with_torch(requirements: list[str]) -> list[str]:
    return requirements if find_torch() else [*requirements, f"torch{TORCH}"]
