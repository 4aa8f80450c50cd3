"""trtspec_benchmark as a test runs it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

Sample = tuple[Sequence[int], int]
"""Input tokens, and how many tokens to generate."""


@dataclass(frozen=True)
class Result:
    """A run that succeeded: what it printed and the files that it wrote."""

    stdout: str
    stderr: str
    folder: Path

    @cached_property
    def report(self) -> dict[str, Any]:
        return _read(self.folder / "report.json")

    @cached_property
    def figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.report["figures"]
        return figures

    @cached_property
    def responses(self) -> list[dict[str, Any]]:
        responses: list[dict[str, Any]] = _read(self.folder / "responses.json")["responses"]
        return responses

    @property
    def tokens(self) -> list[list[int]]:
        return [response["tokens"] for response in self.responses]


@dataclass(frozen=True)
class Program:
    """The program; every call is a process of its own."""

    path: Path

    def call(self, *flags: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [str(self.path), *map(str, flags)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    def run(self, engine: Path, samples: Sequence[Sample], folder: Path, *flags: Any) -> Result:
        """Run samples without a warm-up; the process must succeed."""
        data = write_samples(folder / "samples.json", samples)
        files = (
            "--output_json", folder / "report.json",
            "--responses_json", folder / "responses.json",
            "--output_csv", folder / "figures.csv",
        )  # fmt: skip
        given = ("--engine_dir", engine, "--dataset", data, "--warm_up", 0, *files, *flags)
        done = self.call(*given)
        assert done.returncode == 0, done.stderr
        return Result(done.stdout, done.stderr, folder)

    def refuse(self, *flags: Any) -> tuple[int, str]:
        """Run what must fail with one line and without a result; the exit status and the line."""
        done = self.call(*flags)
        assert done.returncode in (1, 2), (done.returncode, done.stdout, done.stderr)
        assert not done.stdout
        line = done.stderr.removesuffix("\n")
        assert line.startswith("trtspec_benchmark: ") and "\n" not in line, done.stderr
        return done.returncode, line


def write_samples(path: Path, samples: Sequence[Sample]) -> Path:
    """A data set as one JSON object, or for a .jsonl one sample a line."""
    entries = [{"input_ids": list(ids), "output_len": n, "task_id": -1} for ids, n in samples]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    else:
        path.write_text(json.dumps({"metadata": {"workload_type": "test"}, "samples": entries}))
    return path


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
