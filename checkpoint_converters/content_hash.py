"""Parallel hash of file contents: the fingerprint that prevents reuse of a stale engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path

_CHUNK = 64 * 2**20  # bytes hashed by one task


def hash_file(file: Path, threads: int = 4) -> str:
    """Hex digest (64 digits) of a file's bytes.

    Chunks are hashed in parallel (about 1 GB/s per core, or disk speed); the chunk digests are
    hashed in order.
    """
    hash_chunk = partial(_hash_chunk, file)
    starts = range(0, file.stat().st_size, _CHUNK)
    if len(starts) <= 1:  # most files: starting a thread takes longer than they do
        digests = [hash_chunk(start) for start in starts]
    else:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            digests = list(pool.map(hash_chunk, starts))
    return blake2b(b"".join(digests), digest_size=32).hexdigest()


def hash_files(files: Sequence[Path], digest: Callable[[Path], str] = hash_file) -> str:
    """Hex digest (32 digits) of the names, sizes and bytes of files; their order matters.

    Sizes and times are not enough: a checkpoint copied over another one with its times preserved
    would pass for it. ``digest`` may cache results of `hash_file`.
    """
    total = blake2b(digest_size=16)
    for file in files:
        total.update(f"{file.name}\0{file.stat().st_size}\0{digest(file)}".encode())
    return total.hexdigest()


def _hash_chunk(file: Path, start: int) -> bytes:
    digest = blake2b(digest_size=32)
    with file.open("rb") as stream:
        stream.seek(start)
        left = _CHUNK
        while left > 0:
            piece = stream.read(min(left, 2**20))
            if not piece:
                break
            digest.update(piece)
            left -= len(piece)
    return digest.digest()
