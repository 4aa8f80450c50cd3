"""What is said of graphs that do not compile."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._inductor.exc import CppCompileError, InductorError

from trtspec.backends.aoti.compile import compile_graph
from trtspec.backends.shape import Graph
from trtspec.builder import compile_worker
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig
from trtspec.errors import BuildError
from trtspec.models.signature import Signature

from ..e2e.helpers import TinyModels


class Compiler:
    """Stands for the compiler of a worker's child, which a test has fail."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end

    def __call__(self, engine: EngineConfig, name: str, package: Path) -> None:
        print("a library's noise", flush=True)
        self.end()


def failing(error: BaseException) -> Callable[[], None]:
    def end() -> None:
        raise error

    return end


FAILURES = {
    "long": (failing(BuildError("the first line\n" + "more\n" * 9999)), r"the first line\nmore"),
    "unforeseen": (failing(KeyError("what")), r"KeyError: 'what'\n.*in end"),
    "killed": (lambda: os.kill(os.getpid(), 9), r"signal 9 \(Killed\), .* memory\na library's"),
    "full": (
        failing(BuildError("x\n" * 9999 + "g++: error writing: No space left on device")),
        r"no space is left: [\d.]+ MiB in \S+ and [\d.]+ MiB in \S+ are free; .*TMPDIR",
    ),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_what_is_kept_of_a_failure(
    kind: str,
    models: TinyModels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its beginning, which names the cause, and in one line what is beyond the code."""
    end, said = FAILURES[kind]
    monkeypatch.setattr(compile_worker, "_compile", Compiler(end))
    monkeypatch.setattr(compile_worker, "usable_cpus", lambda: 1)  # none is left under way
    packages = {name: str(tmp_path / name) for name in ("one", "two")}
    plan = plan_build(models.folder("llama"), BuildConfig("float32", 2, 64, backend="eager"))
    job = {"engine": plan.engine.to_dict(), "packages": packages}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
    capfd.readouterr()
    assert compile_worker.main() == 1
    found = capfd.readouterr().err
    assert re.match(r"(one|two) did not compile: .*" + said, found, re.DOTALL), found
    assert len(found) < 2100


def test_what_a_compiler_says_comes_before_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(*args: object, **options: object) -> None:
        command = ["g++", "-O3", *["-Isomewhere"] * 500]
        said = "model.cpp:1: error: what is wrong\nmore"
        raise InductorError(CppCompileError(command, said), None)

    monkeypatch.setattr(torch.export, "export", export)
    signature = Signature((torch.zeros(1),), ({},))
    graph = Graph("network", "target", "model.pt2", torch.nn.Identity, lambda: signature)
    said = r"could not compile it: model.cpp:1: error: what is wrong\nmore\n.*g\+\+ -O3"
    with pytest.raises(BuildError, match=said):
        compile_graph(graph, tmp_path / "model.pt2", "cpu")
