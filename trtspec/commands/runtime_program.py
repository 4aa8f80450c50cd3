"""trtspec_benchmark: run an engine folder without Python, by the program that wheels carry."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trtspec

PROGRAM = Path(trtspec.__path__[0]) / "lib" / "trtspec_benchmark"


def main() -> int:
    """Become that program, with the arguments that were given."""
    if not PROGRAM.is_file():
        print(
            f"trtspec_benchmark: {PROGRAM} is missing: editable installations are without it; "
            "build it with CMake, see cpp/README.md of the sources",
            file=sys.stderr,
        )
        return 1
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
