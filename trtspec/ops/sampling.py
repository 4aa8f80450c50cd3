"""Sampling with keyed Gumbel noise: why the text never changes.

The token a target emits at output index i of a request is a pure function of the prefix's logits,
the request's sampling values and its seed: ``argmax(z + G)``, where z are the scaled and filtered
logits and G is Gumbel noise keyed by (seed, sample index, i, token id). That is exact sampling from
softmax(z), and no draft, batch or tree shape enters it. Drafters perturb their own logits with the
same noise, which makes their guesses agree with the target's choices far more often.

The values of a row
    ========================  =======  ====================================================
    temperature               float32  0 = greedy; the filters are then ignored
    top_k                     int32    <= 0 = off
    top_p                     float32  >= 1 = off
    min_p                     float32  <= 0 = off
    seed                      int64    64 bits, any value
    sample_index              int64    which of the request's n samples; modulo 2^32
    output_index              int64    index of the output token, 0 = the first; modulo 2^32
    ========================  =======  ====================================================

The noise
    Philox4x32-10 with key = (low, high word of seed) and counter = (id >> 2, output_index,
    sample_index, 0); the token takes word id & 3, r. x = (r + 0.5) / 2^32, E = -log1p(-x),
    G = -log(E), all in float64: G is in [-3.14, 22.88], and as 1 - x has only 33 bits it is
    accurate in both tails. The native op computes the same float64 values with its own logarithm
    (to about 1e-15), from additions and multiplications alone: every processor gives the same bits.

The filters, in this order, on tokens ordered by logit (highest first, lowest column among equals)
    z = float64(logit) / temperature. top_k keeps the first k. top_p keeps the shortest prefix of
    those whose mass reaches top_p of their mass, where the mass of a token is exp(z - max z)
    rounded to a multiple of 2^-40: integers, so that no order of summation matters. min_p drops
    tokens with exp(z - max z) < min_p. A logit of -inf never survives.

A row without a token
    A row whose logits hold NaN or +inf, or are all -inf, or whose temperature is negative, infinite
    or NaN, or whose min_p exceeds 1 (at a temperature above 0), has no token: `sample` gives -1 and
    `draft_candidates` gives no candidate. The other rows are not affected. (The executor makes it
    an error of that request.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the ops

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
MASS_UNITS = 2.0**40
_WORD = 0xFFFFFFFF


class SamplingColumns(NamedTuple):
    """The values of every row in the order of the ops, each ``[R]`` (see the module docstring)."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sample_index: Tensor
    output_index: Tensor


COLUMN_DTYPES = (torch.float32, torch.int32, torch.float32, torch.float32, *[torch.int64] * 3)
"""Dtypes of `SamplingColumns`."""


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
) -> Tensor:
    """The token that each row emits: int64 [R], -1 for a row without a token (module docstring).

    logits is float32 [R, V]; the others hold one value a row. Ties go to the lowest id.
    """
    ids: Tensor = torch.ops.trtspec.sample(
        logits, temperature, top_k, top_p, min_p, seed, sample_index, output_index
    )
    return ids


def draft_candidates(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
    token_map: Tensor | None,
    k: int,
) -> tuple[Tensor, Tensor]:
    """The k best children of each row for a draft: (ids int64 [R, k], logprobs float32 [R, k]).

    A token's score is s = log q + G with q = softmax over the survivors of the filters and the
    noise of `sample`; at temperature 0 it is log_softmax(logits). ids are the tokens of the k
    highest scores, highest first (lowest column among equals); logprobs are log_softmax(s) over the
    survivors, to about 1e-6: CPUs sum floats there, while the order is that of float64 scores.
    Entries beyond the survivors have id 0 and logprob -inf.

    token_map, int64 [V], gives the target's id of each column of a draft with its own vocabulary:
    the noise is keyed by the target's id and ids are the target's. None = the same vocabulary.
    """
    ids, logprobs = torch.ops.trtspec.draft_candidates(
        logits, temperature, top_k, top_p, min_p, seed, sample_index, output_index, token_map, k
    )
    return ids, logprobs


@torch.library.register_fake("trtspec::sample")  # type: ignore[untyped-decorator]
def _sample_fake(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
) -> Tensor:
    return logits.new_empty((logits.shape[0],), dtype=torch.int64)


@torch.library.register_fake("trtspec::draft_candidates")  # type: ignore[untyped-decorator]
def _draft_candidates_fake(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
    token_map: Tensor | None,
    k: int,
) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], k)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape)


# -- the reference ----------------------------------------------------------------------------


def philox_reference(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10: words in [0, 2^32) of counters [..., 4] and keys [..., 2], all int64.

    The shapes before the last dimension are equal.
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = _multiply(PHILOX_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(PHILOX_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + PHILOX_WEYL[0]) & _WORD, (k1 + PHILOX_WEYL[1]) & _WORD
    return torch.stack((c0, c1, c2, c3), dim=-1)


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of the product of two 32-bit words, without leaving int64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def gumbel_noise(
    token_ids: Tensor, seed: Tensor, sample_index: Tensor, output_index: Tensor
) -> Tensor:
    """The noise G, float64, of token ids (int64); all four broadcast against each other."""
    shape = (token_ids + seed + sample_index + output_index).shape
    ids, seeds = token_ids.expand(shape), seed.expand(shape)
    samples, outputs = sample_index.expand(shape), output_index.expand(shape)
    counter = torch.stack(
        (ids >> 2 & _WORD, outputs & _WORD, samples & _WORD, torch.zeros_like(ids)), dim=-1
    )
    key = torch.stack((seeds & _WORD, seeds >> 32 & _WORD), dim=-1)
    words = philox_reference(counter, key).gather(-1, (ids & 3).unsqueeze(-1)).squeeze(-1)
    x = (words.double() + 0.5) / 2.0**32
    return -torch.log(-torch.log1p(-x))


@dataclass(frozen=True)
class _Row:
    """Survivors of one row: columns in order of the logits, z = logit / temperature, max z."""

    columns: Tensor
    scaled: Tensor
    highest: Tensor


def _survivors(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> _Row | None:
    finite = torch.isfinite(logits)
    broken = torch.isnan(logits).any() or torch.isposinf(logits).any() or not finite.any()
    if broken or not 0.0 <= temperature < float("inf"):
        return None
    greedy = temperature == 0.0
    columns = torch.argsort(logits, descending=True, stable=True)[: int(finite.sum())]
    scaled = logits.double()[columns] / (1.0 if greedy else temperature)
    highest = scaled[0].clone()
    if greedy:
        return _Row(columns, scaled, highest)
    keep = len(columns)
    weights = torch.exp(scaled - highest)
    if top_k > 0:
        keep = min(keep, top_k)
    if top_p < 1.0:
        mass = torch.round(weights[:keep] * MASS_UNITS).long().cumsum(0)
        wanted = torch.clamp(torch.ceil(mass[-1].double() * top_p), min=1.0)
        keep = int(torch.searchsorted(mass, wanted.long())) + 1
    if min_p > 0.0:
        keep = min(keep, int((weights >= min_p).sum()))
    return _Row(columns[:keep], scaled[:keep], highest) if keep else None


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
) -> Tensor:
    """`sample`, written for reading: one row at a time, sorted, everything in float64."""
    ids = torch.full((logits.shape[0],), -1, dtype=torch.int64)
    for r in range(logits.shape[0]):
        row = _survivors(
            logits[r], float(temperature[r]), int(top_k[r]), float(top_p[r]), float(min_p[r])
        )
        if row is None:
            continue
        score = row.scaled
        if temperature[r] != 0.0:
            score = score + gumbel_noise(row.columns, seed[r], sample_index[r], output_index[r])
        ids[r] = row.columns[score == score.max()].min()
    return ids


def draft_candidates_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    sample_index: Tensor,
    output_index: Tensor,
    token_map: Tensor | None,
    k: int,
) -> tuple[Tensor, Tensor]:
    """`draft_candidates`, written for reading."""
    ids = torch.zeros((logits.shape[0], k), dtype=torch.int64)
    logprobs = torch.full((logits.shape[0], k), -float("inf"))
    for r in range(logits.shape[0]):
        row = _survivors(
            logits[r], float(temperature[r]), int(top_k[r]), float(top_p[r]), float(min_p[r])
        )
        if row is None:
            continue
        columns, order = row.columns.sort()
        targets = columns if token_map is None else token_map[columns]
        score = row.scaled[order]
        if temperature[r] != 0.0:
            score = score + gumbel_noise(targets, seed[r], sample_index[r], output_index[r])
        best = torch.argsort(score, descending=True, stable=True)[:k]
        ids[r, : len(best)] = targets[best]
        logprobs[r, : len(best)] = torch.log_softmax(score, dim=0)[best].float()
    return ids, logprobs
