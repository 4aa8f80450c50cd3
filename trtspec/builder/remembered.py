"""Remembers facts from one start to the next: a line of text under a name, in the cache folder.

Records are written atomically. One that is damaged, or cannot be read or written, counts as absent.
"""

from __future__ import annotations

import json
import tempfile
from hashlib import blake2b
from pathlib import Path


def recall(place: Path, facts: str) -> str | None:
    """What was remembered in a file together with exactly these facts; None: nothing."""
    try:
        known, text, check = place.read_text().splitlines()
    except (OSError, ValueError):
        return None
    return text if known == facts and check == _check(facts, text) else None


def remember(place: Path, facts: str, text: str) -> None:
    """Store a line; neither argument may contain line breaks. OSError if it cannot be written."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as scratch:
        scratch.write("\n".join((facts, text, _check(facts, text))))
    Path(scratch.name).replace(place)


def file_facts(scheme: str, path: Path) -> str:
    """Facts that reveal a change of a file: its path, size, inode, and its two times in
    nanoseconds; OSError if it does not exist."""
    status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    return json.dumps([scheme, str(path), status.st_size, status.st_ino, *times])


def _check(facts: str, text: str) -> str:
    """A checksum that reveals damage."""
    return blake2b(f"{facts}\n{text}".encode(), digest_size=16).hexdigest()
