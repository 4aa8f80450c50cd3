"""Builds libtrtspec_ops.so with CMake when the wheel is built; the rest is in pyproject.toml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class BuildOps(build_ext):
    """Runs CMake; the library goes to trtspec/lib in the wheel (editable: in the source tree)."""

    def run(self) -> None:
        try:
            import torch  # noqa: F401  the ops are built against the installed torch
        except ImportError as error:
            sys.exit(
                f"trtspec: its ops are compiled against torch, which cannot be imported ({error})."
                " Install torch first, then: pip install --no-build-isolation ."
            )
        if not any(
            shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")
        ):
            sys.exit(
                "trtspec: no C++ compiler found. Install one (Debian, Ubuntu: apt-get install g++;"
                " Fedora: dnf install gcc-c++), or name one in CXX."
            )
        # Scripts of the running interpreter first: cmake and ninja from pip are there.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        cmake = shutil.which("cmake", path=path)
        if cmake is None:
            sys.exit("trtspec: cmake not found. Install it: pip install cmake ninja")
        in_place = self.inplace or self.editable_mode
        lib_dir = (ROOT if in_place else Path(self.build_lib).resolve()) / "trtspec" / "lib"
        build_dir = Path(self.build_temp).resolve() / "cmake"
        generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
        options = {
            "TRTSPEC_PYTHON": sys.executable,
            "TRTSPEC_LIB_DIR": lib_dir,
            "TRTSPEC_BUILD_RUNTIME": "OFF",
            "TRTSPEC_BUILD_PLUGINS": "OFF",
            "TRTSPEC_BUILD_TESTS": "OFF",
        }
        defines = [f"-D{name}={value}" for name, value in options.items()]
        environment = {**os.environ, "PATH": path}
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(build_dir), *generator, *defines],
            [cmake, "--build", str(build_dir), "--parallel", str(os.cpu_count() or 1)],
        ):
            if subprocess.run(command, env=environment).returncode:
                sys.exit(f"trtspec: building the ops failed: {' '.join(command)}")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


# The extension has no sources: it makes the wheel a platform wheel and runs BuildOps.
setup(ext_modules=[Extension("trtspec.lib.ops", [])], cmdclass={"build_ext": BuildOps})
