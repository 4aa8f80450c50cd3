"""Result files: written whole, read strictly, compared only if they measured the same load."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trtspec.bench.result_file import save
from trtspec.bench.serving.answer import RequestRecord
from trtspec.bench.serving.compare import compare, differences
from trtspec.bench.serving.counters import SpeculationCounters
from trtspec.bench.serving.load import LoadPoint, LoadTest
from trtspec.bench.serving.result import load_result, make_result, point_result
from trtspec.bench.serving.run import PointRun
from trtspec.bench.serving.table import point_table, sweep_table
from trtspec.errors import ConfigError

NAMES = ("a.json", "b.json")
PROMPTS = ["p", "q", "r"]


def make(
    ttft: float = 0.5,
    points: tuple[LoadPoint, ...] = (LoadPoint(2.0, 4),),
    prompts: list[str] = PROMPTS,
    accepted: int | None = None,
    text: str = "x",
    missing: int = 0,
    model: str = "m",
    **load: Any,
) -> dict[str, Any]:
    """A result whose requests have 5 tokens in `ttft` + 1 seconds; the last one failed."""
    results = []
    for point in points:
        records = [
            RequestRecord(i, i / 2, ttft, ttft + 1, (0.5, 0.5), 10, 5, "length", text + prompts[i])
            for i in range(len(prompts) - 1 - missing)
        ]
        records.append(RequestRecord(len(prompts) - 1, 1.0, error="HTTP 429: full"))
        run = PointRun(tuple(records), 4.0, len(prompts), bool(missing))
        after = None if accepted is None else SpeculationCounters(10, 40, accepted, {0: accepted})
        results.append(point_result(point, prompts, run, SpeculationCounters(0, 0, 0), after))
    server = {"url": "http://h", "model": model, "version": None}
    given = {"dataset": "d.jsonl", "num_prompts": len(prompts), **load}
    return make_result(LoadTest(**given), results, server, "trtspec-bench serve")


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    result = make(points=(LoadPoint(math.inf, None), LoadPoint(2.0, 3)), accepted=20)
    save(tmp_path / "r.json", result)
    save(tmp_path / "r.json", result)
    text = (tmp_path / "r.json").read_text()
    assert load_result(tmp_path / "r.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert result["points"][0]["request_rate"] == "inf" and "Infinity" not in text
    assert set(result["client"]["machine"]) >= {"processor", "cores"}
    assert set(result["client"]["versions"]) == {"trtspec", "python", "httpx"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is no result of trtspec-bench serve"),
        ('{"metrics": {}}', "is no result of trtspec-bench serve"),
        ('{"format": "trtspec-bench serve", "format_version": 9}', "has format version 9, .* 1;"),
        ('{"format": "trtspec-bench serve", "format_version": 1}', "is incomplete"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_result(tmp_path / "r.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_result(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        save(tmp_path / "no" / "r.json", make())


def test_the_table_of_a_point() -> None:
    text = point_table(make(accepted=20, missing=1)["points"][0])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "Interrupted: 1 requests did not end; neither they nor their tokens count.",
        "Successful requests: 1",
        "Failed requests: 1",
        "Output token throughput (tok/s): 1.25",
        "Time to first token (TTFT) 500.00 500.00 500.00 500.00 500.00",
        "Time per output token (TPOT) 250.00 250.00 250.00 250.00 250.00",
        "End-to-end latency (E2EL) 1500 1500 1500 1500 1500",
        "mean acceptance length: 3.00 tokens per step with a draft",
        "draft acceptance rate: 0.50 (20 of 40 draft tokens)",
        "acceptance at token 0: 2.00 (20 of 10 drafts)",
        "1 failed: HTTP 429: full",
    ):
        assert line in lines, line
    assert " 2 req/s, 4 at a time " in text
    points = make(points=(LoadPoint(1.0, None), LoadPoint(2.0, None)))["points"]
    rows = [line.split() for line in sweep_table(points).splitlines()[1:]]
    assert [row[:2] for row in rows] == [["1", "req/s"], ["2", "req/s"]]
    assert rows[0][2:6] == ["0.50", "2.50", "500.00", "500.00"]


def test_tables_say_what_is_not_known() -> None:
    prompts = ["p"]
    run = PointRun((RequestRecord(0, 0.0, 0.5, 1.0, (0.5,)),), 2.0, 1, False)
    text = point_table(point_result(LoadPoint(math.inf, None), prompts, run, None, None))
    assert "The server reported no token counts (usage) for 1 requests;" in text
    assert "Output token throughput (tok/s):" + "-".rjust(34) in text and "acceptance" not in text


def test_side_by_side() -> None:
    text = compare(make(ttft=0.5, accepted=20), make(ttft=0.25, accepted=30, model="n"), NAMES)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "A: a.json: m at http://h" in rows[0] and "B: b.json: n at http://h" in rows[1]
    assert "2 req/s, 4 at a time A B B/A" in rows
    assert "Time to first token (TTFT), mean 500.00 250.00 0.50" in rows
    assert "Output token throughput (tok/s) 2.50 2.50 1.00" in rows
    assert "Mean acceptance length 3.00 4.00 1.33" in rows
    assert "The same text in 2 of the 2 requests that both answered." in rows
    assert "DIFFER" not in text and "machines" not in text
    assert "in 0 of the 2" in compare(make(), make(text="y"), NAMES)
    assert "acceptance" not in compare(make(), make(), NAMES)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"max_tokens": 64}, "max_tokens: 128 and 64"),
        ({"endpoint": "/v1/chat/completions"}, "endpoint: '/v1/completions' and '/v1/chat"),
        ({"ignore_eos": True}, "ignore_eos: False and True"),
        ({"extra_body": {"top_p": 0.5}}, r"extra_body: {} and {'top_p': 0.5}"),
        ({"points": (LoadPoint(2.0, 8),)}, "points: 2 req/s, 4 at a time and 2 req/s, 8 at a"),
        ({"points": (LoadPoint(2.0, 4), LoadPoint(3.0, 4))}, "at a time; 3 req/s, 4 at a time"),
        ({"prompts": ["p", "q", "s"], "dataset": "e"}, r"differ, of \(d.jsonl, 512\) and \(e, 512"),
    ],
)
def test_different_loads_are_not_compared_in_silence(other: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)cannot be compared.*{what}.*--force"):
        compare(make(), make(**other), NAMES)
    assert len(differences(make(), make(**other))) == 1
    if other.get("points") == (LoadPoint(2.0, 8),):
        with pytest.raises(ConfigError, match="have no point of the same rate"):
            compare(make(), make(**other), NAMES, force=True)
    else:
        text = compare(make(), make(**other), NAMES, force=True)
        assert "The loads DIFFER" in text and "2 req/s, 4 at a time" in text


def test_the_same_prompts_by_another_name_are_the_same_load() -> None:
    assert differences(make(), make(dataset="copy.jsonl")) == []


def test_what_is_missing_is_said() -> None:
    a, b = make(), make(missing=1)
    b["client"]["machine"] = {**b["client"]["machine"], "processor": "another one"}
    text = compare(a, b, NAMES)
    assert "B was interrupted: 1 requests are missing." in text
    assert "The clients ran on different machines." in text
    assert "in 1 of the 1 requests" in text
