"""PeerProcess: an engine behind one of the scripts in `workers`, in its own Python."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trtspec.child_python import PYTHON, python_environment
from trtspec.errors import TrtspecError

WORKERS = Path(__file__).parent / "workers"
_LAST_LINES = 5


class PeerError(TrtspecError):
    """A peer's engine failed, or its process ended, with its own message."""


@dataclass(frozen=True)
class Job:
    """See `workers.protocol.Job`."""

    model: str
    mode: str
    draft: str | None = None
    num_draft_tokens: int = 0
    batch_size: int = 1
    max_seq_len: int = 2048
    threads: int = 1
    dtype: str = "bfloat16"
    temperature: float = 0.0
    stop_ids: Sequence[int] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class PeerProcess:
    """Serves prompts until it is closed; a context manager."""

    def __init__(self, worker: str, job: Job, python: str = PYTHON, limit: float = 600.0):
        """Start ``workers/<worker>_worker.py`` and wait until its model is loaded. ``limit``:
        seconds that loading or one answer may take.

        Raises:
            PeerError: it cannot be started, or its engine fails.
        """
        self._limit = limit
        self._stop_ids = frozenset(job.stop_ids)
        self._log = tempfile.TemporaryFile(  # noqa: SIM115 (closed by `close`)
            "w+", encoding="utf-8", errors="replace"
        )
        command = [python, str(WORKERS / f"{worker}_worker.py"), json.dumps(asdict(job))]
        threads = {"OMP_NUM_THREADS": str(job.threads)}
        # Another interpreter has packages of its own.
        environment = {**os.environ, **threads}
        if python == PYTHON:
            environment = python_environment(**threads)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=environment,
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"{worker}: {python} cannot be run: {error}") from error
        self._worker = worker
        try:
            ready = self._read()
        except BaseException:
            self.close()
            raise
        self.version: str = ready["version"]

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int
    ) -> tuple[float, list[list[int]]]:
        """Seconds, and the tokens of every prompt without the stop token, which only some engines
        return. PeerError if the engine fails."""
        assert self._process.stdin is not None
        request = {"prompts": list(map(list, prompts)), "max_tokens": max_tokens, "seed": seed}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        answer = self._read()
        tokens = [self._up_to_stop(ids) for ids in answer["tokens"]]
        least = 0 if self._stop_ids else max_tokens
        wrong = [len(ids) for ids in tokens if not least <= len(ids) <= max_tokens]
        if wrong or len(tokens) != len(prompts):
            raise PeerError(
                f"{self._worker} answered {len(tokens)} of {len(prompts)} prompts, "
                f"{wrong[:3] or 'all'} with another number of tokens than {max_tokens}: no rate "
                "can be made of that"
            )
        return float(answer["seconds"]), tokens

    def close(self) -> None:
        """End the process, forcibly if necessary; idempotent."""
        if self._process.stdin is not None:
            with suppress(OSError):  # it may have ended by itself
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _up_to_stop(self, ids: list[int]) -> list[int]:
        return list(takewhile(lambda token: token not in self._stop_ids, ids))

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watch = threading.Timer(self._limit, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            is_late = not watch.is_alive()
            watch.cancel()
        if not line:
            if is_late:
                raise PeerError(f"{self._worker} took more than {self._limit:.0f} s; it was ended")
            raise self._ended()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise PeerError(f"{self._worker} wrote {line!r:.80} in place of JSON") from error
        if "error" in answer:
            raise PeerError(f"{self._worker}: {answer['error']}")
        return answer

    def _ended(self) -> PeerError:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()[-_LAST_LINES:]
        return PeerError(
            f"{self._worker} ended with status {code}: {' | '.join(lines) or 'silent'}"
        )
