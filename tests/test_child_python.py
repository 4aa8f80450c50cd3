"""Child processes import the package of their parent, though they stand beside another one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trtspec
from trtspec.bench.peers import contender, process
from trtspec.bench.peers.process import Job, PeerProcess
from trtspec.builder import graph_cache
from trtspec.child_python import PYTHON, python_command, python_environment

ROOT = Path(trtspec.__path__[0]).resolve().parent
SAY_WHERE = "import trtspec; print(trtspec.__path__[0])"
WORKER = """
from protocol import main
import trtspec

main(lambda job: (trtspec.__path__[0], None))
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the tests stand in: a source tree whose package cannot be imported."""
    for name in ("trtspec", "checkpoint_converters"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise ImportError('the op library is missing')"
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def where(code: str = SAY_WHERE) -> str:
    done = subprocess.run(
        python_command("-c", code), env=python_environment(), capture_output=True, text=True
    )
    return done.stdout.strip() or done.stderr


def test_the_package_of_the_parent() -> None:
    assert where() == trtspec.__path__[0]


@pytest.mark.parametrize("path", [[""], ["", "."], []])
def test_however_the_parent_found_it(path: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a folder that it has left, by a hook of its own, or past a later one with another copy."""
    rest = [entry for entry in sys.path if entry and Path(entry).resolve() != ROOT]
    monkeypatch.setattr(sys, "path", [*path, *rest])
    assert where() == str(ROOT / "trtspec")


def test_the_standard_library_comes_first(monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    """What lies beside the package, where packages are installed, hides none of it."""
    installed = elsewhere / "site-packages"
    shutil.copytree(elsewhere / "trtspec", installed / "trtspec")
    (installed / "json.py").write_text("raise ImportError('not the standard library')")
    rest = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [*rest, str(installed)])
    assert where("import json, trtspec; print('fine')") == "fine"


def test_the_compile_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it imports takes long, so the package alone is looked for in its place."""
    popen, commands = subprocess.Popen, []
    check = f"import trtspec; assert trtspec.__path__[0] == {trtspec.__path__[0]!r}"

    def started(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return popen([*command[: command.index("-m")], "-c", check], **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    nothing: Any = SimpleNamespace(to_dict=dict)
    graph_cache._run_worker(nothing, {}, {})
    assert [command[-1] for command in commands] == ["trtspec.builder.compile_worker"]


def test_a_worker_of_ours(monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    workers = elsewhere / "workers"
    workers.mkdir()
    shutil.copy(process.WORKERS / "protocol.py", workers)
    (workers / "own_worker.py").write_text(WORKER)
    monkeypatch.setattr(process, "WORKERS", workers)
    monkeypatch.setattr(sys, "path", [*(entry for entry in sys.path if entry)])
    with PeerProcess("own", Job("model", "plain")) as peer:
        assert peer.version == trtspec.__path__[0]


def test_a_peer_is_not_found_in_the_folder_one_stands_in(
    monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    engine = replace(contender.ENGINES["vllm"], module="surely_not_installed")
    monkeypatch.setattr(contender, "ENGINES", {"vllm": engine})
    (elsewhere / "surely_not_installed").mkdir()
    (elsewhere / "surely_not_installed" / "__init__.py").touch()
    assert contender.installed_peers("folder") == []
    monkeypatch.setattr(contender, "ENGINES", {"vllm": replace(engine, module="json")})
    assert [peer.python for peer in contender.installed_peers("folder")] == [PYTHON]


def test_nothing_else_starts_our_python() -> None:
    own = Path(trtspec.__path__[0])
    files = [path for path in own.rglob("*.py") if "sys.executable" in path.read_text()]
    assert [path.name for path in files] == ["child_python.py"]
