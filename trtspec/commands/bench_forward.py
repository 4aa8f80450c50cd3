"""trtspec-bench forward: what single engine calls take, beside the floor."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.report.floor import (
    MachineRates,
    MemorySpeed,
    measure_machine,
    ms_text,
    share_text,
)
from trtspec.bench.report.result_file import check_output, make_result, save
from trtspec.bench.report.table import print_table
from trtspec.bench.runs.forward import FIRST_STEP, ROLLOUT, VERIFY, CallShape, ForwardBench, row_of
from trtspec.bench.runs.methods import read_methods
from trtspec.bench.synthetic_flag import add_synthetic_flag, engine_maker
from trtspec.builder.available_drafts import available_drafts
from trtspec.commands.bench_prompts import ENGINE_OPTIONS, add_engine_flags
from trtspec.errors import ConfigError

FORMAT, FORMAT_VERSION = "trtspec-bench forward", 2
HEADERS = (
    "call", "backend", "batch", "rows", "context", "ms", "cpu ms", "x first", "floor ms", "share",
    "products ms",
)  # fmt: skip
DESCRIPTION = """Times the call that verifies, by rows a request (the root and its drafts), batch
and context, and with --method the one that drafts (rows: accepted ones, which it begins with), and
its first step where an engine can leave it at that.
floor: the time to read the weights, once a pass, and the K/V alone; products: what the weights take
at the measured rates of plain products of as many rows; x first: times the engine's first line;
cpu ms: processor time of all threads together, which other work on the machine hardly changes.
Several backends are measured one after the other. On aoti a rollout is one compiled call; on eager
and on backends of ONNX graphs it is a call or two for each pass over the draft.
"""


def add_forward_command(commands: Any) -> None:
    """Add the command to the subparsers of `trtspec-bench`."""
    forward = commands.add_parser(
        "forward",
        help="single engine calls by rows, batch and context, beside the floor",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    forward.set_defaults(run=run_forward)
    add = forward.add_argument
    add("--model", default="trtspec-tiny", help="target: HF folder or id, embedded name, engine")
    add("--drafts", nargs="*", default=[], help="draft for --method (default: what is embedded)")
    add_synthetic_flag(forward)
    add("--method", help="time its rollout as well: eagle3:5, eagle3:4,5,24 or JSON")
    add("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="default: 1 ... 32")
    add("--rollout_rows", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    add("--batch_sizes", type=int, nargs="+", default=[1], help="default: 1")
    add("--contexts", type=int, nargs="+", default=[128], help="default: 128")
    add("--seconds", type=float, default=0.5, help="for each figure (default: %(default)s)")
    add_engine_flags(forward, several_backends=True)
    add("--output", type=Path, help="write everything measured to this file, as JSON")


def run_forward(args: argparse.Namespace) -> None:
    for name in ("rows", "rollout_rows", "batch_sizes", "contexts"):
        for value in getattr(args, name):
            if value < 1:
                raise ConfigError(f"--{name} {value} must be at least 1")
    if args.output is not None:
        check_output(args.output)
    shapes = [
        CallShape(kind, rows, batch, context)
        for kind, all_rows in (
            (VERIFY, args.rows),
            (ROLLOUT, args.rollout_rows),
            (FIRST_STEP, args.rollout_rows),
        )
        for batch in args.batch_sizes
        for context in args.contexts
        for rows in all_rows
        if kind == VERIFY or args.method is not None
    ]
    method = None
    if args.method is not None:
        method = read_methods([args.method], available_drafts(args.model, args.drafts))[-1].config
    make = engine_maker(args)
    rates: dict[tuple[str, str], MachineRates] = {}
    engines, measured, calls, lines = [], [], [], []
    options = {name: getattr(args, name) for name in ENGINE_OPTIONS}
    options |= {"dtype": args.dtype, "max_batch_size": max(args.batch_sizes)}
    for backend in args.backend or [None]:
        folder = make(args.model, method, **options | {"backend": backend})
        bench = ForwardBench(folder, method, shapes)
        built = bench.engine.build
        key = built.device, built.dtype
        if key not in rates:
            rates[key] = measure_machine(*key)
            print(rates[key].describe())
        engines.append(built.to_dict())
        times = [time for shape in shapes for time in bench.measure(shape, args.seconds)]
        speed = MemorySpeed(built.device)
        speed.sample()
        rates[key] = rates[key].with_bandwidth(speed.best)
        measured.append((built.backend, key, times))
    for backend, key, times in measured:
        found = [{"backend": backend, **row_of(time, rates[key])} for time in times]
        lines += _lines(found)
        calls += found
    dtypes = " and ".join(dict.fromkeys(engine["dtype"] for engine in engines))
    print_table(f"{args.model}, {dtypes}", HEADERS, lines)
    if args.output is not None:
        save(
            args.output,
            make_result(
                FORMAT,
                FORMAT_VERSION,
                args.argv,
                ("torch",),
                {
                    "model": args.model,
                    "engines": engines,
                    "rates": [found.to_dict() for found in rates.values()],
                    "calls": calls,
                },
            ),
        )


def _lines(calls: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Lines for the calls of one backend."""
    first: dict[str, float] = {}
    return [
        [
            f"{call['engine']}: {call['kind']}",
            *(str(call[name]) for name in ("backend", "batch", "rows", "context")),
            f"{call['ms']:.3f}",
            f"{call['processor_ms']:.1f}",
            f"{call['ms'] / first.setdefault(call['engine'], call['ms']):.2f}",
            ms_text(call["memory_floor_ms"]),
            share_text(call["memory_floor_share"]),
            f"{call['linear_ms']:.3f}",
        ]
        for call in calls
    ]
