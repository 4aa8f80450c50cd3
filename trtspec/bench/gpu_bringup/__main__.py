"""The first quarter of an hour on a GPU, in one command.

    python -m trtspec.bench.gpu_bringup --output report/

Measures steps, products, attention and launches, compares kernels and engines with the CPU's and
has compute-sanitizer look at them. It needs torch with CUDA and the source tree, no network. What
fails stops nothing else; the same command goes on where the last one stopped, on another machine
too if the folder went there. Without a GPU all of it is rehearsed on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trtspec.bench.gpu_bringup.bring_up import bring_up
from trtspec.bench.gpu_bringup.journal import FAILED, STOPPED
from trtspec.bench.gpu_bringup.parts import PARTS

SECONDS = 320.0
"""Out of the 15 minutes that a machine is lent for: two runs fit, each with a start and transfers,
and the seconds that this process takes before the first part and after the last."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trtspec.bench.gpu_bringup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("report"), help="folder of the report and what is kept")
    add("--seconds", type=float, default=SECONDS, help="then all is stopped (default: %(default)g)")
    add("--parts", nargs="+", choices=[part.name for part in PARTS], help="these alone")
    add("--device", choices=("cuda", "cpu"), help="cpu: rehearse (default: cuda, if there is one)")
    given = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(given)
    parts = [part for part in PARTS if args.parts is None or part.name in args.parts]
    results = bring_up(args.output, parts, args.seconds, args.device, given)
    return 1 if any(result.status in (FAILED, STOPPED) for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
