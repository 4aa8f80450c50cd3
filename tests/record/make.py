"""Record what every method compiles: ``python -m tests.record.make``. Prints and writes what moved.

``--show eagle3 aoti draft/rollout.pt2`` prints a graph's normal form, to see what moved in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..e2e.every_method import NOT_ON_ONNX
from . import store
from .compare import entries_moved, messages_moved, methods_moved
from .messages import messages
from .observe import ALL, Workshop, temporary_workshop, versions


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.record.make", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="these alone, no messages")
    parser.add_argument("--check", action="store_true", help="print what moved, write nothing")
    parser.add_argument("--show", nargs=3, metavar=("METHOD", "BACKEND", "GRAPH"))
    args = parser.parse_args(argv)
    unknown = [name for name in args.only or () if name not in ALL]
    if unknown:
        parser.error(f"no method {unknown[0]!r}; there are {', '.join(ALL)}")
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TRTSPEC_CACHE_DIR", cache)
        shop, scratch = temporary_workshop()
        with scratch:
            if args.show:
                print(shop.graph_text(*args.show), end="")
                return 0
            return _record(shop, args.only, args.check)


def _record(shop: Workshop, only: Sequence[str] | None, check: bool) -> int:
    old = store.read() if (store.DATA / "made_with.json").exists() else store.Record()
    new = store.Record(versions(), shop.checkpoints(), methods={}, messages=old.messages)
    for method in ALL:
        if only and method not in only:
            if method in old.methods:
                new.methods[method] = old.methods[method]
            continue
        built = [name for name in ("eager", "onnx") if name != "onnx" or method not in NOT_ON_ONNX]
        new.methods[method] = {
            **{name: shop.folder(method, name) for name in built},
            "aoti": shop.exported(method),
        }
        print(f"{method}: seen", file=sys.stderr)
    if not only:
        new.messages = messages(shop)
    moved = [
        *entries_moved("made with", {**old.versions}, {**new.versions}),
        *entries_moved("checkpoints", {**old.checkpoints}, {**new.checkpoints}),
        *methods_moved(old.methods, new.methods),
        *messages_moved(old.messages, new.messages),
    ]
    print("\n".join(moved) or "nothing moved")
    if check:
        return 1 if moved else 0
    for name in store.write(new):
        print(f"wrote {Path('data') / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
