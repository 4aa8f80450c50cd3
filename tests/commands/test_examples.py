"""The programs in `examples/`, over the embedded model. They run where no compiler is found, so in
eager mode, which takes seconds."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a program; what it prints."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)

    def program(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capfd.readouterr().out

    return program


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("offline", 3),  # one for each prompt, and so on
        ("streaming", 1),
        ("hybrid", 3),
        ("json_schema", 1),
        ("lora", 3),
    ],
)
def test_an_example(run: Run, name: str, lines: int) -> None:
    said = [line for line in run(name).splitlines() if line.startswith("--- ")]
    assert len(said) == lines, said


def test_a_conversation_finds_its_prompts_in_the_cache(run: Run) -> None:
    first, second = [line for line in run("chat").splitlines() if line.startswith("--- ")]
    assert first.startswith("--- 0 tokens") and not second.startswith("--- 0 tokens")


def test_a_tree_and_a_chain_give_one_text(run: Run) -> None:
    chain, tree, texts = run("tree").splitlines()
    assert float(tree.split()[0]) > float(chain.split()[0])
    assert texts == "1 different text(s)"


def test_recorded_states(run: Run, tmp_path: Path) -> None:
    lines = run("record_traffic", str(tmp_path / "states")).splitlines()
    assert len(lines) == 3 and all("hidden_states" in line for line in lines)


@pytest.mark.slow
def test_a_trained_head(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("modelopt")
    said = run("train_head", str(tmp_path / "head")).splitlines()[-1]
    assert float(said.removesuffix(" tokens a step")) > 1.2


def test_a_server_and_its_client(run: Run) -> None:
    said = run("serve_and_ask")
    assert "--- without drafts: 16 tokens" in said
    assert said.splitlines()[-1] == "the server ended with 0"
