"""The violations of today. The list may only shrink.

    python -m tests.structure.allowed                     counts per rule
    python -m tests.structure.allowed --prune             drop what is no longer needed
    python -m tests.structure.allowed --rename OLD NEW    follow a file or folder that moved

No command adds an entry or raises a count.
"""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from .rules import violations
from .violation import REMEDIES, Violation
from .walk import Tree

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("allowed.toml")

Key = tuple[str, str, str]  # rule, file, what


def read(text: str) -> dict[Key, int]:
    """A table for each rule; in it ``"<file>: <what>" = count``."""
    return {
        (rule, *_split(entry)): count
        for rule, entries in tomllib.loads(text).items()
        for entry, count in entries.items()
    }


def write(allowed: Mapping[Key, int]) -> str:
    """The text that `read` takes, sorted, one entry a line."""
    lines = ["# Violations of today, by rule. It may only shrink: see allowed.py."]
    for rule, keys in groupby(sorted(allowed), key=lambda key: key[0]):
        lines += ["", f"[{rule}]"]
        lines += [f'"{file}: {what}" = {allowed[rule, file, what]}' for _, file, what in keys]
    return "\n".join(lines) + "\n"


def counted(found: Iterable[Violation]) -> dict[Key, int]:
    counts: Counter[Key] = Counter()
    for violation in found:
        counts[violation.key] += violation.count
    return dict(counts)


def new(found: Iterable[Violation], allowed: Mapping[Key, int]) -> list[str]:
    """A message for each key of which there is more than is allowed, with all of its lines: which
    of them is the new one, the list cannot know."""
    found = list(found)
    messages = []
    for key, count in sorted(counted(found).items()):
        rule, file, what = key
        if count > allowed.get(key, 0):
            lines = sorted({each.line for each in found if each.key == key} - {0})
            place = file + (f":{','.join(map(str, lines))}" if lines else "")
            messages.append(
                f"{place}: {rule}: {what} ({count}, allowed {allowed.get(key, 0)}). "
                f"Instead: {REMEDIES[rule]}."
            )
    return messages


def unneeded(found: Iterable[Violation], allowed: Mapping[Key, int]) -> list[str]:
    """A message for each entry that allows more than there is."""
    counts = counted(found)
    return [
        f"{file}: {rule}: {what}: the list allows {count}, there are {counts.get(key, 0)}. "
        f"Remove it: python -m tests.structure.allowed --prune"
        for key, count in sorted(allowed.items())
        for rule, file, what in [key]
        if count > counts.get(key, 0)
    ]


def pruned(found: Iterable[Violation], allowed: Mapping[Key, int]) -> dict[Key, int]:
    """The list without what is gone; no count is above that of `allowed`."""
    counts = counted(found)
    return {key: min(n, counts[key]) for key, n in allowed.items() if key in counts}


def renamed(allowed: Mapping[Key, int], old: str, new: str) -> dict[Key, int]:
    """The list after the file or folder `old` has become `new`."""

    def moved(file: str) -> str:
        inside = file == old or file.startswith(f"{old}/")
        return new + file[len(old) :] if inside else file

    counts: Counter[Key] = Counter()
    for (rule, file, what), count in allowed.items():
        counts[rule, moved(file), what] += count
    return dict(counts)


def _split(entry: str) -> tuple[str, str]:
    file, _, what = entry.partition(": ")
    return file, what


def main() -> None:
    parser = argparse.ArgumentParser(description="The violations that are still allowed.")
    parser.add_argument("--prune", action="store_true", help="drop what is no longer needed")
    parser.add_argument("--rename", nargs=2, metavar=("OLD", "NEW"), help="follow what moved")
    args = parser.parse_args()
    allowed = read(LIST.read_text())
    if args.rename:
        allowed = renamed(allowed, *(path.rstrip("/") for path in args.rename))
    if args.prune:
        allowed = pruned(violations(Tree(ROOT)), allowed)
    if args.rename or args.prune:
        LIST.write_text(write(allowed))
    for rule in REMEDIES:
        counts = [count for key, count in allowed.items() if key[0] == rule]
        print(f"{rule:20} {len(counts):4} entries {sum(counts):5} violations")
    print(f"{'all':20} {len(allowed):4} entries {sum(allowed.values()):5} violations")


if __name__ == "__main__":
    main()
