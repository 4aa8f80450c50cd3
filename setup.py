"""Builds libtrtspec_ops.so with CMake when a wheel is built, and trtspec_benchmark, which runs
engines without Python; what depends on no build is in pyproject.toml.

The CUDA kernels of the ops, libtrtspec_cuda_ops.so, are built too if torch is one with CUDA and a
CUDA toolkit (nvcc) is found. Their sources travel in the wheel: NVRTC can compile them later.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

from build_backend import TORCH, find_torch

ROOT = Path(__file__).resolve().parent

# Kept: the next installation compiles what has changed, and `.ci/run` links the C++ programs from
# the objects that are there.
BUILD_FOLDER = ROOT / "build" / "cmake"

REQUIREMENTS = (
    "numpy>=1.26",
    "safetensors>=0.4.5",
    "transformers>=4.51,<6",
    "tokenizers>=0.21",
    "jinja2>=3.1.6",
    "tqdm>=4.66",
    "huggingface_hub>=0.30",
)

# What NVRTC reads, in the folders of the repository; see trtspec/ops/cuda_launch.py.
CUDA_SOURCES = (
    "plugins/kernels.hpp",
    "plugins/kernels",
    "plugins/nvrtc",
    *(
        f"cpp/include/trtspec/{name}.hpp"
        for name in (
            *("attention", "build_tree", "causal_conv", "dtype", "finish_reason", "gated_delta"),
            *("isa", "logits_mask", "mamba2", "philox", "resident_step", "row_arrays"),
            *("sampling", "state_walk"),
        )
    ),
    *(f"cpp/ops/{name}.hpp" for name in ("isa", "sampling_kernel", "sampling_math")),
)


class BuildOps(build_ext):
    """Runs CMake; the library goes to trtspec/lib in the wheel (editable: in the source tree)."""

    def run(self) -> None:
        torch = find_torch()
        if torch is None:
            sys.exit(
                f"trtspec: its ops are compiled against torch{TORCH}, which is not installed."
                " Install it first, or leave --no-build-isolation out."
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
        ninja = shutil.which("ninja", path=path)
        nvcc = find_nvcc(torch.cuda, path)
        options = {
            "TRTSPEC_TORCH_DIR": torch.folder,
            "TRTSPEC_LIB_DIR": lib_dir,
            "TRTSPEC_BUILD_TORCH": "ON",
            # Who works on the sources builds its programs by themselves.
            "TRTSPEC_BUILD_RUNTIME": "OFF" if in_place else "ON",
            "TRTSPEC_PACKAGE": "OFF" if in_place else "ON",
            "TRTSPEC_BUILD_PLUGINS": "ON" if nvcc else "OFF",
            "TRTSPEC_BUILD_TESTS": "OFF",
        }
        if nvcc:
            options["CMAKE_CUDA_COMPILER"] = nvcc
        architectures = os.environ.get("TRTSPEC_CUDA_ARCHITECTURES")
        if nvcc and architectures:  # such as native: a build for the GPU that is here
            options["TRTSPEC_CUDA_ARCHITECTURES"] = architectures
        if ninja:  # that of the environment which built last may be gone
            options["CMAKE_MAKE_PROGRAM"] = ninja
        generator = ["-G", "Ninja" if ninja else "Unix Makefiles"]
        forget_another_generator(BUILD_FOLDER, generator[1])
        defines = [f"-D{name}={value}" for name, value in options.items()]
        environment = {**os.environ, "PATH": path}
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(BUILD_FOLDER), *generator, *defines],
            [cmake, "--build", str(BUILD_FOLDER), "--parallel", str(os.cpu_count() or 1)],
        ):
            if subprocess.run(command, env=environment).returncode:
                sys.exit(f"trtspec: building the ops failed: {' '.join(command)}")
        if not in_place:  # an editable installation reads them where they are
            copy_cuda_sources(lib_dir / "cuda")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildAnew(build):
    """Leaves out files of an earlier build whose sources are gone."""

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class PlatformWheel(bdist_wheel):
    """A wheel for all Pythons: its libraries know torch and no Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def torch_requirement() -> str:
    """Sources go with several versions of torch, what is compiled with one."""
    torch = find_torch()
    return f"torch{TORCH}" if torch is None or "sdist" in sys.argv else torch.requirement


def forget_another_generator(build_dir: Path, generator: str) -> None:
    """Start a kept build folder anew if it is another generator's, which CMake would refuse."""
    cache = build_dir / "CMakeCache.txt"
    if cache.is_file() and f"CMAKE_GENERATOR:INTERNAL={generator}\n" not in cache.read_text():
        shutil.rmtree(build_dir)


def find_nvcc(torch_cuda: str | None, path: str) -> str | None:
    """The compiler of the CUDA kernels, or None, saying why they are not built.

    torch_cuda: the version of torch's CUDA. path: where nvcc is looked for, after CUDACXX and
    before CUDA_HOME and CUDA_PATH.
    """
    if torch_cuda is None:
        print("trtspec: torch has no CUDA; the ops are built for the CPU alone")
        return None
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc", path=path)
    nvcc = nvcc or shutil.which("nvcc", path=str(Path(home) / "bin"))
    if nvcc is None:
        print(
            f"trtspec: torch has CUDA {torch_cuda}, but there is no nvcc in PATH or {home}/bin;"
            " the ops are built for the CPU alone. For CUDA, install the toolkit or name its nvcc"
            " in CUDACXX."
        )
    return nvcc


def copy_cuda_sources(target: Path) -> None:
    """Put what NVRTC compiles into the package, in the folders of the repository."""
    for name in CUDA_SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, dirs_exist_ok=True)
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


# The extension has no sources: it makes the wheel a platform wheel and runs BuildOps.
setup(
    install_requires=[torch_requirement(), *REQUIREMENTS],
    ext_modules=[Extension("trtspec.lib.ops", [])],
    cmdclass={"build": BuildAnew, "build_ext": BuildOps, "bdist_wheel": PlatformWheel},
)
