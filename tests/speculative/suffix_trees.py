"""SuffixCache: the C++ suffix trees (cpp/include/trtspec) with types.

A suffix tree counts how often every string of up to max_depth tokens occurs in the texts it holds,
and drafts tokens that go on from the end of a text as these texts did (suffix decoding,
arXiv:2411.04975). RuntimeError for arguments that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.speculative.suffix.drafter import SuffixSizes


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """How far and where a draft may go.

    Where the last m tokens match, at most factor * m + offset tokens are drafted, none of which is
    less likely than min_prob. tree: the likeliest nodes, else one path.
    """

    factor: float = 1.0
    offset: float = 0.0
    min_prob: float = 0.1
    tree: bool = False


@dataclass(frozen=True, slots=True)
class SuffixDraft:
    """A draft: of each node its token, the index of its parent (-1: the root) and the probability
    of the path down to it, by the counts; score is their sum, match_len the m it continues."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    probs: Sequence[float] = ()
    score: float = 0.0
    match_len: int = 0


class SuffixCache:
    """A local tree for each active request (its whole text) and a global one of all responses.

    max_depth: longest string counted, 1 to 1024. max_requests: responses kept, the oldest going
    first; -1 for no limit, 0 for none. max_tokens: tokens of all kept responses; the newest may
    exceed it alone.
    """

    def __init__(self, max_depth: int, max_requests: int, max_tokens: int) -> None:
        cache: Any = torch.classes.trtspec.SuffixCache(max_depth, max_requests, max_tokens)
        self._is_active, self._start, self._stop = cache.is_active, cache.start, cache.stop
        self._append_prompt = cache.append_prompt
        self._append_response = cache.append_response
        self._speculate = cache.speculate
        self._evict, self._sizes = cache.evict, cache.sizes

    def start(self, request_id: int) -> None:
        """Make a request active with an empty text. One that was stopped goes on with its cached
        response: its tokens are to be appended again and are not counted twice."""
        self._start(request_id)

    def is_active(self, request_id: int) -> bool:
        return bool(self._is_active(request_id))

    def append_prompt(self, request_id: int, tokens: Sequence[int]) -> None:
        """The next tokens of the prompt; none may follow a response."""
        self._append_prompt(request_id, tokens)

    def append_response(self, request_id: int, tokens: Sequence[int]) -> None:
        """The next tokens of the response, for both trees."""
        self._append_response(request_id, tokens)

    def speculate(
        self, request_ids: Sequence[int], max_tokens: Sequence[int], options: SuffixOptions
    ) -> list[SuffixDraft]:
        """A draft of at most max_tokens[i] nodes for each of the active requests, from the tree
        that promises more accepted tokens; the local one if they promise the same."""
        o = options
        drafts = self._speculate(request_ids, max_tokens, o.factor, o.offset, o.min_prob, o.tree)
        return _split(*drafts)

    def stop(self, request_id: int) -> None:
        """Drop the local tree, keep the response if it has tokens; requests that are not active
        are ignored."""
        self._stop(request_id)

    def evict(self, request_id: int) -> bool:
        """Drop a cached response; whether there was one."""
        return bool(self._evict(request_id))

    @property
    def sizes(self) -> SuffixSizes:
        return SuffixSizes(*self._sizes())


def _split(
    sizes: list[int],
    tokens: list[int],
    parents: list[int],
    probs: list[float],
    scores: list[float],
    matches: list[int],
) -> list[SuffixDraft]:
    drafts, begin = [], 0
    for size, score, match_len in zip(sizes, scores, matches, strict=True):
        end = begin + size
        drafts.append(
            SuffixDraft(tokens[begin:end], parents[begin:end], probs[begin:end], score, match_len)
        )
        begin = end
    return drafts
