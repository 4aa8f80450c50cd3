"""MEASUREMENTS.md, the front page's tables and the picture say what the result files say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec.bench.measurements import (
    FRONT_PAGE,
    PAGE,
    PICTURE,
    RESULTS,
    front_page,
    markdown,
    page,
    picture,
)
from trtspec.bench.report.measured_tables import PAIR, SECTIONS, Table
from trtspec.bench.report.result_file import load, make_result, rows, save
from trtspec.errors import ConfigError

AGAIN = "run python -m trtspec.bench.measurements"
FILES = sorted(RESULTS.glob("*.json"))


def test_pages_are_written_from_the_result_files() -> None:
    assert page() == PAGE.read_text(), AGAIN
    assert front_page(FRONT_PAGE.read_text()) == FRONT_PAGE.read_text(), AGAIN
    assert picture() == PICTURE.read_text(), AGAIN
    shown = {table.file for _, _, tables in SECTIONS for table in tables}
    assert shown == {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_results_are_small_and_whole(file: Path) -> None:
    result = load(file)
    assert file.stat().st_size < 16_000 and result["commit"] and result["command"]
    assert {"processor", "instruction_sets", "cores", "gpu"} <= result["machine"].keys()
    assert all({"engine", "method"} <= row.keys() for row in rows(result))


def test_what_programs_write_becomes_rows(tmp_path: Path) -> None:
    """Of each kind of result; the header says where it was measured."""
    line = {"tokens_per_second": 3.0, "spread": 1.1}
    points = [
        {
            "batch_size": 8,
            "temperature": 1.0,
            "methods": [{"name": "eagle3:5", **line}],
            "contenders": [{"engine": "vllm", "mode": "plain", **line}],
        }
    ]
    save(tmp_path / "x.json", make_result("trtspec-bench x", 1, ["x"], (), {"points": points}))
    result = load(tmp_path / "x.json")
    assert result["command"] == "trtspec-bench x"
    assert {"processor", "instruction_sets", "cores", "memory_gib"} <= result["machine"].keys()
    ours, theirs = rows(result)
    where = {"batch": 8, "temperature": 1.0, "spread": 1.1}
    assert {"engine": "trtspec", "method": "eagle3:5", **where}.items() <= ours.items()
    assert {"engine": "vllm", "method": "plain", **where}.items() <= theirs.items()
    table = Table("x", "X", ("batch, temperature", "engine"))
    assert markdown(table, result).splitlines() == [
        "| batch, temperature | engine | eagle3:5 | plain |",
        "|---|---|---|---|",
        "| 8, 1 | trtspec | 3.0 | - |",
        "| 8, 1 | vllm | - | 3.0 |",
    ]


def test_by_kind_beside_peers() -> None:
    """A row for each kind and one for all; who failed has none, and figures that a row lacks leave
    the others of its cell."""

    def line(engine: str, mode: str, speed: float, own: float) -> dict[str, Any]:
        kinds = {"edit": {"tokens_per_second": speed, "speed_up": own}}
        figures = {"tokens_per_second": 3.0, "speed_up": 1.0, "spread": 1.0}
        return {"engine": engine, "mode": mode, **figures, "categories": kinds}

    failed = {"engine": "b", "mode": "draft_model:4", "failure": "no"}
    contenders = [line("trtspec", "plain", 4.0, 1.0), line("a", "plain", 2.0, 0.5), failed]
    point = {"batch_size": 1, "temperature": 0.0, "contenders": contenders}
    found = rows({"points": [point]})
    assert [(row["engine"], row["category"]) for row in found] == [
        ("trtspec", "edit"), ("trtspec", "all"), ("a", "edit"), ("a", "all"),
    ]  # fmt: skip
    assert "spread" not in found[0]  # it is that of all
    assert markdown(replace(PAIR, columns=("edit",)), {"points": [point]}).splitlines()[2:] == [
        "| trtspec | plain | 4.0 (1.00) |",
        "| a | plain | 2.0 (0.50) |",
    ]
    ratio = {"engine": "trtspec", "method": "auto", "temperature": 0.0, "category": "edit"}
    alone = {"rows": [{**ratio, "speed_up": 2.0}]}
    assert markdown(replace(PAIR, columns=("edit",)), alone).splitlines()[2] == (
        "| trtspec | auto | (2.00) |"
    )


@pytest.mark.parametrize("text", ["", "[1]", json.dumps({"format": "x", "rows": []})])
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.json (cannot be read|is no result)"):
        load(tmp_path / "x.json")
