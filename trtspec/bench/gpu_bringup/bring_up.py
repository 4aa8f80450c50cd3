"""bring_up: runs parts where this is called, and writes their report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from trtspec.bench.gpu_bringup.part import Part, PartResult, Place
from trtspec.bench.gpu_bringup.report import PAGE_NAME, write_report
from trtspec.bench.gpu_bringup.runner import run_parts

ROOT = Path(__file__).resolve().parents[3]


def bring_up(
    output: Path,
    parts: Sequence[Part],
    minutes: float,
    device: str | None = None,
    again: bool = False,
) -> list[PartResult]:
    """Run parts and write the report into ``output``, anew with each of them; a line for each is
    printed. ``device`` None: cuda, if torch finds it."""
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = Place(output.resolve(), ROOT, found)

    def tell(results: list[PartResult]) -> None:
        last = results[-1]
        said = f": {last.error}" if last.error else ""
        print(f"{last.status:12} {last.name} ({last.seconds:.0f} s){said}"[:500], flush=True)
        write_report(place, parts, results, minutes)

    results = run_parts(place, parts, minutes, tell, again)
    print(f"report: {place.output / PAGE_NAME}")
    return results
