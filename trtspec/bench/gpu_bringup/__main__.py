"""Everything that a GPU alone can show, in one command.

    python -m trtspec.bench.gpu_bringup --output report/

Builds the CUDA ops, compares kernels and engines with the CPU's, lets compute-sanitizer look at
them, and measures them beside what the device can do. It needs torch with CUDA, nvcc and the source
tree, no network. Every part runs, whether or not one before it failed, while there is time; the
same command goes on where the last one stopped. Without a GPU all of it is rehearsed on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trtspec.bench.gpu_bringup.bring_up import ROOT, bring_up
from trtspec.bench.gpu_bringup.part import FAILED, STOPPED, Place
from trtspec.bench.gpu_bringup.parts import PARTS, needed
from trtspec.bench.gpu_bringup.runner import run_here

_MIB = 1 << 20
_UNTRACKED = ("__pycache__", "lib", "build")
"""Folders that are made here, and need not travel."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trtspec.bench.gpu_bringup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("report"), help="folder of the report and what is kept")
    add("--minutes", type=float, default=8.0, help="then no part begins, and one is stopped")
    add("--parts", nargs="+", choices=[part.name for part in PARTS], help="these alone")
    add("--again", action="store_true", help="repeat what is done already")
    add("--list", action="store_true", help="say what there is, and what of the tree it needs")
    add(
        "--device", choices=("cuda", "cpu"), help="cpu: rehearse (default: cuda, if torch finds it)"
    )
    add("--part", help=argparse.SUPPRESS)  # of a child process
    return parser


def list_parts() -> str:
    """What there is to do, and what of the source tree must be there."""
    lines = [f"{part.name:16} {part.title} (at most {part.seconds:.0f} s)" for part in PARTS]
    names = needed()
    size = sum(size_of(ROOT / name) for name in names) / _MIB
    return "\n".join([*lines, f"needs of the tree: {' '.join(names)} ({size:.1f} MiB)"])


def size_of(path: Path) -> int:
    """Bytes of a file, or of a folder without what is built in it."""
    if path.is_file():
        return path.stat().st_size
    files = (file for file in path.rglob("*") if file.is_file())
    kept = (file for file in files if not set(file.relative_to(path).parts) & set(_UNTRACKED))
    return sum(file.stat().st_size for file in kept)


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    if args.list:
        print(list_parts())
        return 0
    if args.part is not None:
        part = next(part for part in PARTS if part.name == args.part)
        run_here(Place(args.output, ROOT, args.device), part)
        return 0
    parts = [part for part in PARTS if args.parts is None or part.name in args.parts]
    results = bring_up(args.output, parts, args.minutes, args.device, args.again)
    return 1 if any(result.status in (FAILED, STOPPED) for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
