"""A round of peers: all interleaved by prompts, each in a new process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from trtspec.bench.peers.contender import Contender, MeasuredRound
from trtspec.bench.peers.process import PeerError, PeerProcess
from trtspec.bench.runs.interleaving import turns


class PeerRound:
    """A contender's process in a round, and the measurements of its turns; engines that learn
    remember nothing of earlier rounds."""

    def __init__(
        self, contender: Contender, prompts: Sequence[Sequence[int]], seed: int, warm_up: int
    ) -> None:
        """Start the process; ``warm_up`` tokens of the first prompts are generated first, untimed.

        Raises:
            PeerError: it cannot be started, or its engine fails.
        """
        self.contender = contender
        self.process = PeerProcess(contender.worker, contender.job, contender.python)
        self._seconds: list[float] = []
        self._first_seconds: list[float] = []
        self._tokens: list[list[int]] = []
        try:
            self.process.generate(prompts[:2], warm_up, seed)
        except BaseException:
            self.process.close()
            raise

    def take_turn(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, times_prefills: bool
    ) -> None:
        """Serve these prompts whole, preceded by their first tokens alone if prefills are timed;
        PeerError if the engine fails."""
        if times_prefills:
            self._first_seconds.append(self.process.generate(prompts, 1, seed)[0])
        seconds, tokens = self.process.generate(prompts, max_tokens, seed)
        self._seconds.append(seconds)
        self._tokens += tokens

    def finish(self) -> None:
        """Add the round to those of the contender."""
        self.contender.version = self.process.version
        first = sum(self._first_seconds) if self._first_seconds else None
        self.contender.rounds.append(MeasuredRound(self._tokens, self._seconds, first))


def run_round(
    contenders: Sequence[Contender],
    prompts: Sequence[list[int]],
    max_tokens: int,
    seed: int,
    warm_up: int,
    turn_size: int,
    fail: Callable[[Contender, PeerError], None],
    times_prefills: bool = True,
) -> None:
    """One round, in turns of ``turn_size`` prompts. If a contender's engine fails, ``fail`` is
    called, which may raise; the others continue. ``times_prefills``: also time first tokens alone.
    """
    with ExitStack() as stack:
        under_way: list[PeerRound] = []
        for contender in contenders:
            try:
                under_way.append(PeerRound(contender, prompts, seed, warm_up))
            except PeerError as error:
                fail(contender, error)
            else:
                stack.callback(under_way[-1].process.close)
        for part, order in turns(under_way, len(prompts), turn_size):
            for one in order:
                try:
                    one.take_turn(prompts[part], max_tokens, seed + part.start, times_prefills)
                except PeerError as error:
                    under_way.remove(one)
                    fail(one.contender, error)
        for one in under_way:
            one.finish()
