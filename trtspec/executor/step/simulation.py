"""SimulatedAcceptance: forced acceptance rates, to time speculation without a trained draft."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.executor.step.request import Request
from trtspec.ops.sampling import PHILOX_MULTIPLIERS, PHILOX_ROUNDS, PHILOX_WEYL

_WORD = 0xFFFFFFFF
# The last counter word of the sampling noise is 0: another one makes the draws independent of it.
_STREAM = 1


def uniform(seed: int, sample_index: int, step: int) -> float:
    """A number in (0, 1), a pure function of its arguments: word 0 of Philox4x32-10 with the key
    and the counter words of `trtspec.ops.sampling`, except for the last one.

    Python's integers take microseconds for this; ten rounds of tensor operations would take a third
    of a millisecond.
    """
    c0, c1, c2, c3 = 0, step & _WORD, sample_index & _WORD, _STREAM
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(PHILOX_ROUNDS):
        a, b = PHILOX_MULTIPLIERS[0] * c0, PHILOX_MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _WORD, (a >> 32) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _WORD, (k1 + PHILOX_WEYL[1]) & _WORD
    return (c0 + 0.5) / 2.0**32


class SimulatedAcceptance:
    """How many drafts each request's step accepts, drawn at random with given rates.

    ``rates[i]`` is the share of steps that accept a draft at depth i + 1 or deeper: unconditional,
    so never increasing; beyond the last one it is 0. They are met if trees are deep enough. The
    text is then NOT the target's: it is what the drafts say. The draws are keyed by a request's
    seed, sample index and number of steps: runs are reproducible whatever the batches, and runs
    that draft more or less are equally lucky, step by step.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        """``rates`` as checked by `DecodingConfig.simulate_acceptance`."""
        self.rates = tuple(rates)

    def accepted(self, request: Request) -> int:
        """Drafts that the request's current step accepts, if its tree is deep enough."""
        draw = uniform(request.seed, request.sample_index, request.num_steps)
        return sum(draw < rate for rate in self.rates)
