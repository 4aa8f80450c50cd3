"""The parts of a bring-up, in the order in which they are worth their time."""

from __future__ import annotations

from trtspec.bench.gpu_bringup.part import Part

_HERE = "trtspec.bench.gpu_bringup"
_PACKAGE = ("trtspec", "checkpoint_converters")
_SOURCES = ("cpp", "plugins", "setup.py", "CMakeLists.txt", "pyproject.toml", "README.md")

PARTS = (
    Part("machine", "What is here", f"{_HERE}.facts:run", ("trtspec",), 60),
    Part(
        "build",
        "Do the ops and their CUDA kernels build?",
        f"{_HERE}.build_ops:run",
        (*_PACKAGE, *_SOURCES),
        420,
    ),
    Part(
        "parity",
        "Do kernels give what the CPU's ops give?",
        f"{_HERE}.parity:run",
        _PACKAGE,
        120,
    ),
    Part(
        "memory",
        "Does compute-sanitizer find accesses or races?",
        f"{_HERE}.sanitizer:run",
        (*_PACKAGE, "plugins"),
        180,
    ),
    Part("kernel_tests", "The tests of kernels", f"{_HERE}.suites:kernels", ("tests",), 240),
    Part("engine_tests", "Same text as on the CPU?", f"{_HERE}.suites:engines", ("tests",), 240),
    Part("compiled_tests", "Compiled engines", f"{_HERE}.suites:compiled", ("tests",), 420),
    Part("kernels", "Kernels beside floors", f"{_HERE}.kernel_figures:run", _PACKAGE, 120),
    Part("fixture", "An engine with an 8B model's cost", f"{_HERE}.steps:fixture", _PACKAGE, 480),
    Part("calls", "Calls of that engine", f"{_HERE}.steps:calls", _PACKAGE, 180),
    Part("steps", "Steps, and what they are made of", f"{_HERE}.steps:steps", _PACKAGE, 300),
    Part(
        "library_tests", "Engines of other backends", f"{_HERE}.suites:libraries", ("tests",), 420
    ),
    Part(
        "library_fixture",
        "The 8B engine on other backends",
        f"{_HERE}.steps:library_fixture",
        _PACKAGE,
        480,
    ),
    Part("library_calls", "Calls of those", f"{_HERE}.steps:library_calls", _PACKAGE, 180),
    Part("library_steps", "Steps of those", f"{_HERE}.steps:library_steps", _PACKAGE, 300),
)
SHORT = ("machine", "parity", "kernels")
"""Those that need no source tree, and seconds."""


def needed(parts: tuple[Part, ...] = PARTS) -> list[str]:
    """The files and folders of the source tree that parts need."""
    return list(dict.fromkeys(name for part in parts for name in part.needs))
