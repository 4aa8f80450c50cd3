"""DigestMemory: remembers digests of large files from one start to the next."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from checkpoint_converters.content_hash import hash_file
from trtspec.builder.locate import cache_root
from trtspec.builder.remembered import file_facts, recall, remember
from trtspec.ops.host import usable_cpus

SETTLED_NS = 2 * 10**9
"""The age from which a file's times reveal every later change: the coarsest file system clocks tick
every 2 s."""

_MAX_THREADS = 8
_SCHEME = "blake2b of 64 MiB chunks"


@dataclass(frozen=True)
class DigestMemory:
    """`hash_file`, remembered by a file's path, size, inode and its two times in nanoseconds: when
    its content changed, and when its inode changed, which nobody can set back.

    Each file has a record of its own under ``folder``, see `trtspec.builder.remembered`; processes
    that start simultaneously hash a file twice at worst. ``verify``: hash again whatever is
    remembered.
    """

    folder: Path
    verify: bool = False

    @classmethod
    def of_user(cls, verify: bool = False) -> DigestMemory:
        """The memory in the user's cache folder."""
        return cls(cache_root() / "digests", verify)

    def digest(self, file: Path) -> str:
        """Like `hash_file`; OSError if the file cannot be read."""
        path = file.resolve()
        facts = _facts(path)
        place = self.folder / blake2b(str(path).encode(), digest_size=16).hexdigest()
        remembered = None if self.verify else recall(place, facts)
        if remembered is not None:
            return remembered
        is_settled = time.time_ns() - path.stat().st_ctime_ns > SETTLED_NS
        digest = hash_file(path, min(_MAX_THREADS, usable_cpus()))
        if is_settled and _facts(path) == facts:
            with suppress(OSError):
                remember(place, facts, digest)
        return digest


def _facts(path: Path) -> str:
    return file_facts(_SCHEME, path)
