"""Plots: a picture of every format, its axis the load that was varied, errors before measuring."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trtspec.bench.picture import check_picture
from trtspec.bench.serving.load import LoadPoint
from trtspec.bench.serving.plot import load_axis, plot
from trtspec.errors import ConfigError

from .test_serve_compare import make

pytest.importorskip("matplotlib")


def points(*loads: tuple[float, int | None]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = make(points=tuple(LoadPoint(*load) for load in loads))["points"]
    return found


@pytest.mark.parametrize(
    ("loads", "key"),
    [
        ([(1.0, None), (2.0, 8)], "request_rate"),
        ([(math.inf, 1), (math.inf, 8)], "max_concurrency"),
        ([(1.0, 4), (math.inf, 8)], "max_concurrency"),
        ([(1.0, None), (math.inf, None)], "request_throughput"),
    ],
)
def test_the_axis_is_the_load_that_all_points_have(loads: Any, key: str) -> None:
    assert load_axis(points(*loads))[1] == key


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures(tmp_path: Path, suffix: str, magic: bytes) -> None:
    unknown = points((4.0, None))
    unknown[0]["median_tpot_ms"] = unknown[0]["p99_tpot_ms"] = None
    path = tmp_path / f"p.{suffix}"
    plot({"a": points((1.0, None), (2.0, None)), "b": unknown}, path)
    data = path.read_bytes()
    assert data.startswith(magic) and len(data) > 5000


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must end in one of \..*, \.png"):
        check_picture(tmp_path / "p.docx")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_picture(tmp_path / "no" / "p.png")
    with pytest.raises(ConfigError, match="no point to plot"):
        plot({}, tmp_path / "p.png")
    monkeypatch.setattr("trtspec.bench.picture.HAS_MATPLOTLIB", False)
    with pytest.raises(ConfigError, match=r"pip install 'trtspec\[bench\]'"):
        check_picture(tmp_path / "p.png")
