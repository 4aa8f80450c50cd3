"""Parts that are tests of the source tree, for GPUs; in a rehearsal, the same ones played on the
CPU."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from trtspec.bench.gpu_bringup.part import PartFailed, PartSkipped, Place
from trtspec.bench.machine import package_version
from trtspec.child_python import python_command, python_environment

_FOLDER = "tests/gpu"
_PLAYED = f"{_FOLDER}/test_played.py"


def kernels(place: Place) -> Mapping[str, Any]:
    """Each kernel beside its reference, and those that cuda-python launches."""
    if place.is_rehearsal:
        return run_tests(place, [_PLAYED, "-k", "kernels_and_launches and accept"])
    return run_tests(place, [f"{_FOLDER}/test_kernels.py", f"{_FOLDER}/test_cuda_ops.py"])


def engines(place: Place) -> Mapping[str, Any]:
    """Modules as they are, with CUDA graphs and without: the CPU's text."""
    if place.is_rehearsal:
        return run_tests(place, [_PLAYED, "-k", "test_engines and logprobs"])
    return run_tests(place, [f"{_FOLDER}/test_engine.py", "-k", "not compiled"])


def compiled(place: Place) -> Mapping[str, Any]:
    """Compiled engines, with CUDA graphs and without: the CPU's text."""
    if place.is_rehearsal:
        raise PartSkipped("engines for a GPU are not compiled without one")
    return run_tests(place, [f"{_FOLDER}/test_engine.py", "-k", "test_compiled"])


def libraries(place: Place) -> Mapping[str, Any]:
    """Engines of libraries: the text of compiled ones."""
    if place.is_rehearsal:
        raise PartSkipped("no library runs an engine without a GPU")
    return run_tests(place, [f"{_FOLDER}/test_tensorrt.py"])


def run_tests(place: Place, arguments: Sequence[str]) -> Mapping[str, Any]:
    """How many tests ended how; PartFailed with the first failure's words."""
    place.require("tests", *(name for name in arguments if name.startswith("tests/")))
    if package_version("pytest") is None:
        raise PartSkipped("pytest is not installed")
    found = place.output / "logs" / "tests.xml"
    found.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={found}"]
    subprocess.run(
        python_command("-m", "pytest", *options, *arguments),
        cwd=place.root,
        env=python_environment(),
    )
    if not found.is_file():
        raise PartFailed("pytest ended without a word about its tests; see the log")
    counts, first, why = outcomes(found)
    if first:
        raise PartFailed(f"{counts['failed']} of {counts.total()} tests failed, first {first}")
    if not counts["passed"]:
        raise PartSkipped(f"all {counts.total()} tests were skipped: {why}" if why else "no tests")
    return dict(counts)


def outcomes(file: Path) -> tuple[Counter[str], str, str]:
    """Tests by outcome, the first failure, and why the first one was skipped."""
    counts: Counter[str] = Counter()
    first = why = ""
    for case in ElementTree.parse(file).iter("testcase"):
        bad = [*case.findall("failure"), *case.findall("error")]
        skipped = case.find("skipped")
        if bad:
            first = first or f"{case.get('name')}: {bad[0].get('message')}"
        elif skipped is not None:
            why = why or str(skipped.get("message"))
        counts["failed" if bad else "passed" if skipped is None else "skipped"] += 1
    return counts, first, why
