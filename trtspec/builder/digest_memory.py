"""DigestMemory: digests of large files, remembered from one start to the next."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from checkpoint_converters.content_hash import hash_file
from trtspec.builder.locate import cache_root
from trtspec.ops.host import usable_cpus

SETTLED_NS = 2 * 10**9
"""The age of a file from which on its times show every later change: the coarsest clocks of file
systems tick every 2 s."""

_MAX_THREADS = 8
_SCHEME = "blake2b of 64 MiB chunks"


@dataclass(frozen=True)
class DigestMemory:
    """`hash_file`, remembered by a file's path, size, inode and its two times in nanoseconds: when
    its contents changed, and when its inode changed, which nobody can set back.

    Each file has a memory of its own under ``folder``. It is put into place as a whole, so
    processes that start at the same time hash a file twice at worst. A memory that is damaged, or
    cannot be read or written, counts as none. ``verify``: hash again whatever is remembered.
    """

    folder: Path
    verify: bool = False

    @classmethod
    def of_user(cls, verify: bool = False) -> DigestMemory:
        """The memory in the user's cache folder."""
        return cls(cache_root() / "digests", verify)

    def digest(self, file: Path) -> str:
        """As `hash_file`; OSError if the file cannot be read."""
        path = file.resolve()
        facts = _facts(path)
        place = self.folder / blake2b(str(path).encode(), digest_size=16).hexdigest()
        remembered = None if self.verify else _recall(place, facts)
        if remembered is not None:
            return remembered
        is_settled = time.time_ns() - path.stat().st_ctime_ns > SETTLED_NS
        digest = hash_file(path, min(_MAX_THREADS, usable_cpus()))
        if is_settled and _facts(path) == facts:
            with suppress(OSError):
                _remember(place, facts, digest)
        return digest


def _facts(path: Path) -> str:
    status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    return json.dumps([_SCHEME, str(path), status.st_size, status.st_ino, *times])


def _recall(place: Path, facts: str) -> str | None:
    """The digest that was remembered with these very facts; None: there is none."""
    try:
        known, digest, check = place.read_text().splitlines()
    except (OSError, ValueError):
        return None
    return digest if known == facts and check == _check(facts, digest) else None


def _remember(place: Path, facts: str, digest: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as scratch:
        scratch.write("\n".join((facts, digest, _check(facts, digest))))
    Path(scratch.name).replace(place)


def _check(facts: str, digest: str) -> str:
    """A check sum, which shows whether a memory was damaged."""
    return blake2b(f"{facts}\n{digest}".encode(), digest_size=16).hexdigest()
