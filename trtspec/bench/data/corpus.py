"""Text that every machine has: the running interpreter's standard library, split in two."""

from __future__ import annotations

import sysconfig
import zlib
from pathlib import Path

SKIPPED_FOLDERS = {"site-packages", "__pycache__"}
HELD_OUT_SHARE = 32


def standard_library() -> tuple[list[str], list[str]]:
    """Return (training files, held-out files) as text; one file in 32 is held out, by its name."""
    root = Path(sysconfig.get_path("stdlib"))
    train: list[str] = []
    held_out: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS & set(name.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if text.strip():
            is_held_out = zlib.crc32(name.as_posix().encode()) % HELD_OUT_SHARE == 0
            (held_out if is_held_out else train).append(text)
    return train, held_out
