"""The load program of the guide drives this server; skipped where aiperf is not on the PATH."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ..llmapi.conftest import TextModel
from .conftest import Serve

GUIDE = Path(__file__).resolve().parents[2] / "examples" / "README.md"


@pytest.mark.ci
@pytest.mark.skipif(shutil.which("aiperf") is None, reason="aiperf is not installed")
def test_aiperf_as_the_guide_calls_it(serve: Serve, text_model: TextModel, tmp_path: Path) -> None:
    """Its own lines of the guide, with this server's address, tokenizer and a few requests."""
    (command,) = re.findall(r"^aiperf profile .*$", GUIDE.read_text(), flags=re.MULTILINE)
    (tmp_path / "part.jsonl").write_text('{"text": "the cat"}\n{"text": "the dog"}\n')
    with serve("chain") as server:
        for words, here in (
            ("http://127.0.0.1:$port", server.url),
            ("<served name>", "tiny"),
            ("<model>", str(text_model.folder)),
            ("--concurrency $n", "--concurrency 2"),
            ("$((8 * n))", "4"),
            ("--output-tokens-mean 128", "--output-tokens-mean 8"),
            ("load/$port-$n", str(tmp_path / "out")),
        ):
            assert words in command
            command = command.replace(words, here)
        done = subprocess.run(
            [*command.split(), "--ui", "none"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert server.llm.get_metrics()["num_accepted_tokens"] > 0
    figures = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert figures["request_count"]["avg"] == 4 and figures["time_to_first_token"]["avg"] > 0
