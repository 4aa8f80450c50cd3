"""RuntimeCache: the kernels that TensorRT-RTX compiled on this GPU, kept in a file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from trtspec.log import logger

SUFFIX = ".runtime_cache"


class RuntimeCache:
    """Kernels that the first calls of an engine compiled, for the next process to load.

    TensorRT-RTX accepts a file only if it was written for this GPU, driver and version; otherwise
    it is rewritten. A folder that is not writable costs compile time, nothing else.
    """

    def __init__(self, path: Path, runtime_config: Any) -> None:
        """``runtime_config``: TensorRT's, whose execution contexts will use the cache."""
        self._path = path
        self._cache = runtime_config.create_runtime_cache()
        self._saved = b""
        stored = path.read_bytes() if path.is_file() else b""
        if stored and self._cache.deserialize(stored):
            self._saved = stored
        elif stored:
            logger.info("%s is of another GPU, driver or TensorRT: kernels are compiled anew", path)
        if not runtime_config.set_runtime_cache(self._cache):
            logger.info("TensorRT does not take %s: kernels are not kept", path)

    def save(self) -> None:
        """Write what has been compiled since the last time, atomically."""
        content = bytes(self._cache.serialize())
        if content == self._saved:
            return
        self._saved = content
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            scratch.write_bytes(content)
            scratch.replace(self._path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            logger.info("%s cannot be written (%s): kernels are not kept", self._path, error)


def open_runtime_cache(path: Path, runtime_config: Any) -> RuntimeCache | None:
    """The cache in that file; None for a TensorRT that compiles nothing at run time."""
    if not hasattr(runtime_config, "create_runtime_cache"):
        return None
    return RuntimeCache(path, runtime_config)
