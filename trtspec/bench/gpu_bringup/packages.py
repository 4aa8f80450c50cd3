"""Compiled graphs as files that travel between a lent machine and the next: an archive, cut into
pieces."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from trtspec.bench.gpu_bringup.part import PartFailed
from trtspec.writable import write_whole

PIECE_BYTES = 16 << 20
MOST_PIECES = 2
"""More could come back, but not go to the next machine: 64 MiB travel there, at least half of which
is the source tree with the kernels."""
_PATTERN = "packages.*"


def restore(output: Path, folder: Path) -> list[str]:
    """Unpack what `keep` left in an output folder; returns the file names. Damaged or missing
    pieces count as absent: their contents are compiled again."""
    archive = io.BytesIO(b"".join(piece.read_bytes() for piece in sorted(output.glob(_PATTERN))))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            names = tar.getnames()
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError, OSError):
        return []
    return names


def keep(files: Iterable[Path], output: Path, piece_bytes: int = PIECE_BYTES) -> int:
    """Pack files into an output folder, replacing those kept before; returns their bytes there.

    Raises:
        PartFailed: they are too large; nothing has changed.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for file in sorted(files):
            tar.add(file, file.name)
    data = archive.getvalue()
    if len(data) > MOST_PIECES * piece_bytes:
        raise PartFailed(
            f"compiled graphs of {len(data)} bytes exceed the {MOST_PIECES} pieces of "
            f"{piece_bytes} bytes that may come back; a later run compiles them again"
        )
    for piece in output.glob(_PATTERN):
        piece.unlink()
    for i in range(0, len(data), piece_bytes):
        write_whole(output / f"packages.{i // piece_bytes}", data[i : i + piece_bytes])
    return len(data)
