"""bring_up: runs parts in this process's place, and writes their report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from trtspec.bench.gpu_bringup.journal import Journal, PartResult
from trtspec.bench.gpu_bringup.part import Part, Place
from trtspec.bench.gpu_bringup.report import PAGE_NAME, write_report
from trtspec.bench.gpu_bringup.runner import run_apart, run_parts

ROOT = Path(__file__).resolve().parents[3]


def bring_up(
    output: Path,
    parts: Sequence[Part],
    seconds: float,
    device: str | None = None,
    argv: Sequence[str] = (),
) -> Mapping[str, PartResult]:
    """Run parts and write the report into ``output``, again after each of them; a line for each is
    printed. ``device`` None: cuda, if torch finds it. Returns the results by name."""
    output.mkdir(parents=True, exist_ok=True)
    found = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = Place(output.resolve(), ROOT, found)
    journal = Journal(place.output, found)

    async def apart(part: Part, seconds: float) -> None:
        await run_apart(place, journal, part, seconds)
        result = journal.result(part.name)
        said = f": {result.error}" if result.error else ""
        print(f"{result.status:12} {part.name}{said}"[:400], flush=True)
        write_report(place, parts, journal, argv)

    asyncio.run(run_parts(parts, journal, seconds, apart))
    write_report(place, parts, journal, argv)
    print(f"report: {place.output / PAGE_NAME}")
    return {part.name: journal.result(part.name) for part in parts}
