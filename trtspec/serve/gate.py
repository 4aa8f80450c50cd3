"""Gate: limits the number of requests under way, and estimates when a refused one should retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.serve.errors import ApiError

_SMOOTHING = 0.2
_LONGEST_WAIT = 60.0


class Gate:
    """Counts sequences between a request's arrival and its last byte; used by one thread only."""

    def __init__(self, batch: int, queue: int) -> None:
        """`batch`: sequences that run together; `queue`: how many more may wait."""
        self.num_sequences = 0
        self.num_requests = 0
        self._batch = batch
        self._capacity = batch + queue
        self._seconds = 1.0  # running mean of how long a request takes

    @contextmanager
    def enter(self, sequences: int) -> Iterator[None]:
        """Hold places for a request's sequences.

        Raises:
            ApiError: 429 if the queue is full, 400 if it could never hold that many.
        """
        if sequences > self._capacity:
            raise ApiError(
                400,
                f"the request asks for {sequences} sequences (prompts times n), but at most "
                f"{self._capacity} may run and wait; send fewer at once",
                "too_many_sequences",
            )
        if self.num_sequences + sequences > self._capacity:
            raise ApiError(
                429,
                f"{self.num_sequences} sequences run or wait and {sequences} more would exceed "
                f"{self._capacity} (the batch and its queue); try again later",
                "queue_full",
                retry_after=self.expected_wait,
            )
        self.num_sequences += sequences
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_sequences -= sequences
            self.num_requests -= 1

    @property
    def expected_wait(self) -> float:
        """Seconds until half of the current sequences are expected to finish."""
        rounds = self.num_sequences / self._batch
        return min(max(self._seconds * rounds / 2, 1.0), _LONGEST_WAIT)

    def observe(self, seconds: float) -> None:
        """Record a finished request."""
        self._seconds += _SMOOTHING * (seconds - self._seconds)
