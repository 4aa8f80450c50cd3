"""Files of hidden states: one safetensors file a request, written by threads, whole or not at all.

    hidden_states  [num_tokens, num_layers, hidden_size]   the engine's dtype
    token_ids      [num_tokens]                            int64

The metadata names the states: ``capture_layers``, a JSON list of outputs as in `CausalLM`. A file
appears under its name only once it is complete. While it is written it is a hidden file with a lock
on it; what a killed process left of those is removed when the folder is next opened for writing.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trtspec.errors import ConfigError, EngineError
from trtspec.log import logger
from trtspec.writable import check_folder

HIDDEN_STATES_PATH = "hidden_states_path"
_LAYERS = "capture_layers"
_UNFINISHED = ".unfinished"
_LEFTOVER_SECONDS = 60.0  # younger unfinished files may be about to be locked
_SAFETENSORS_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def check_storage(folder: Path) -> None:
    """Raise ConfigError if files could not be written into the folder, which may not exist yet."""
    try:
        check_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"shared_storage_path={str(folder)!r} cannot be written to ({error}); give a folder "
            "that this process may write to"
        ) from error


def remove_leftovers(folder: Path) -> int:
    """Remove what killed writers left behind, but no files of running ones. Returns how many."""
    removed = 0
    for path in folder.glob(f".*{_UNFINISHED}"):
        with suppress(OSError):  # gone already, or locked by its writer
            if time.time() - path.stat().st_mtime < _LEFTOVER_SECONDS:
                continue
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                removed += 1
    return removed


def write_hidden_states(
    path: Path,
    tokens: Sequence[int],
    rows: Sequence[Tensor],
    layers: Sequence[int],
    publish: Callable[[Path, Path], None] | None = None,
) -> None:
    """Write one file: ``rows`` are the hidden states of ``layers``, ``[n, num_layers *
    hidden_size]`` of consecutive tokens, len(tokens) in all; they are written one by one, never
    copied as a whole.

    ``publish`` gives the unfinished file its name, if it is not simply renamed. After any failure
    nothing is left behind; OSError if it is the disk's.
    """
    count, width = len(tokens), rows[0].shape[1]
    assert sum(map(len, rows)) == count, "a row a token"
    ids = torch.tensor(tokens, dtype=torch.int64)
    row_bytes = width * rows[0].element_size()
    header = {
        "__metadata__": {"format": "pt", _LAYERS: json.dumps(list(layers))},
        "token_ids": _entry("I64", [count], 0, 8 * count),
        "hidden_states": _entry(
            _SAFETENSORS_DTYPES[rows[0].dtype],
            [count, len(layers), width // len(layers)],
            8 * count,
            row_bytes * count,
        ),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    unfinished = path.with_name(f".{path.name}{_UNFINISHED}")
    with unfinished.open("xb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in (ids, *rows):
                _write_tensor(file, tensor)
            file.flush()
            (publish or Path.replace)(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def read_header(path: Path) -> tuple[int, tuple[int, ...]]:
    """The tokens of a file, and the layers whose outputs it holds; ConfigError if it is not such a
    file."""
    try:
        with safe_open(path, framework="pt") as file:
            layers = tuple(json.loads((file.metadata() or {})[_LAYERS]))
            return file.get_slice("hidden_states").get_shape()[0], layers
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{path} is no file of recorded hidden states ({error}); remove it, or record it again"
        ) from error


class HiddenFile:
    """A file being written; a `trtspec.executor.step.request.Transfer`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._discarded = False
        self._future: Future[None] = Future()

    def add_done_callback(self, done: Callable[[], None]) -> None:
        self._future.add_done_callback(lambda _: done())

    def result(self) -> Mapping[str, str]:
        """The file's path; EngineError if it could not be written."""
        self._future.result()
        return {HIDDEN_STATES_PATH: str(self.path)}

    def discard(self) -> None:
        with self._lock:
            self._discarded = True
            with suppress(OSError):
                self.path.unlink(missing_ok=True)

    def write(self, tokens: Sequence[int], rows: list[Tensor], layers: Sequence[int]) -> None:
        """Write it, on this thread."""
        failure = None
        try:
            if not self._discarded:
                write_hidden_states(self.path, tokens, rows, layers, self._publish)
        except BaseException as error:  # whatever it was, the caller must not wait for ever
            size = sum(tensor.nbytes for tensor in rows)
            failure = EngineError(
                f"the hidden states of {len(tokens)} tokens ({size} bytes) cannot be written to "
                f"{self.path}: {error!s:.500}; make room there, or give another shared_storage_path"
            )
            logger.error("%s", failure)
            self.discard()  # closing a file can fail too, when it has its name already
        rows.clear()  # before anybody is told: their memory is free by then
        if failure is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(failure)

    def _publish(self, unfinished: Path, path: Path) -> None:
        with self._lock:
            if self._discarded:
                unfinished.unlink()
            else:
                unfinished.replace(path)


class HiddenFileWriter:
    """Writes files of one folder with a pool of threads.

    At most twice as many files as threads are being written or waiting, each with the hidden states
    of one request in memory; `submit` blocks when there are more.
    """

    def __init__(self, folder: Path, num_threads: int) -> None:
        """Creates the folder if necessary; ConfigError: it cannot be written to."""
        check_storage(folder)
        folder.mkdir(parents=True, exist_ok=True)
        removed = remove_leftovers(folder)
        if removed:
            logger.info("removed %d unfinished files from %s", removed, folder)
        self._folder = folder.resolve()
        # Request ids begin anew with every process, and a folder may serve many.
        self._prefix = secrets.token_hex(6)
        self._room = threading.BoundedSemaphore(2 * num_threads)
        self._pool = ThreadPoolExecutor(num_threads, "trtspec-hidden-files")

    def submit(
        self, request_id: int, tokens: Sequence[int], rows: list[Tensor], layers: Sequence[int]
    ) -> HiddenFile:
        """Start writing; ``rows`` and ``tokens`` as in `write_hidden_states`; ``rows`` is emptied
        when they are written."""
        file = HiddenFile(self._folder / f"{self._prefix}-{request_id}.safetensors")
        self._room.acquire()

        def work() -> None:
            try:
                file.write(tokens, rows, layers)
            finally:
                self._room.release()

        self._pool.submit(work)
        return file


def _entry(dtype: str, shape: list[int], begin: int, size: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}


def _write_tensor(file: BinaryIO, tensor: Tensor) -> None:
    # numpy does not know every dtype, but the bytes of all.
    file.write(tensor.contiguous().view(torch.uint8).numpy().data)
