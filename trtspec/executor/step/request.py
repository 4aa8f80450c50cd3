"""Request: one sequence being generated, from its arrival to its finish reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trtspec.config.sampling import SamplingParams
from trtspec.errors import PromptTooLongError, RequestError
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.models.adapters import Adapter
from trtspec.ops.sequence import UNLIMITED, TokenSequence

_PRIVATE, _NO_SLOT = 2**62, -1
"""Numbers that no adapter reaches, as these are counted; and where none lies."""


class Transfer(Protocol):
    """Work for a request whose text has ended that is still under way on another thread."""

    def add_done_callback(self, done: Callable[[], None]) -> None:
        """Call ``done`` once, from any thread, when it has ended; immediately if it already has."""
        ...

    def result(self) -> Mapping[str, str]:
        """Wait for the end; returns what the caller is to know about it. TrtspecError: it
        failed."""
        ...

    def discard(self) -> None:
        """The caller is gone: when this returns, nothing of it is left, nor will anything appear
        later."""
        ...


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. Mutable; compared and hashed by identity.

    id: unique among the requests of an executor; lower ids arrived earlier. tokens: prompt and
    output so far, the newest one last (the root, in a generation step); a view of what C++ holds,
    which commits extend. max_output_tokens: how many tokens it may emit in all, already cut to what
    max_seq_len leaves. max_draft_len: depth of its drafts; 0: no drafts, and no rows in draft
    caches. seed: of the sampling noise, resolved (never None). sample_index: which of the `n`
    samples. eos_token_ids: ids that end the text; empty if EOS is ignored. num_steps: target
    verifications so far. finish_reason: None while it runs. processors: of its logits, in addition
    to those of its options. priority: given by the caller; policies admit lower ones earlier.
    adapter: the target's adapter for it; None: none. transfer: set by a drafter when the text has
    ended: the caller must wait for it too. num_cached_tokens: prompt tokens that it found in the
    caches when it first began (None until then). arrival_time, scheduled_time: when it was created,
    and when its first rows were scheduled (None until then), of `time.monotonic`.

    A step feeds rows tokens[committed : committed + n] of the target cache. With one row left (the
    root) the request *generates*: draft nodes may follow it. A longer remainder is prefill, and the
    chunk that reaches the end samples its last row. This also holds after a preemption, and for a
    prompt of which all but one token came from the prefix cache.
    """

    id: int
    tokens: TokenSequence
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    max_output_tokens: int
    sample_index: int = 0
    eos_token_ids: tuple[int, ...] = ()
    num_steps: int = 0
    finish_reason: str | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    transfer: Transfer | None = None
    arrival_time: float = field(default_factory=time.monotonic)
    scheduled_time: float | None = None
    num_cached_tokens: int | None = None
    priority: int = 0
    max_draft_len: int = UNLIMITED
    adapter: Adapter | None = None

    @classmethod
    def create(
        cls,
        id: int,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        max_seq_len: int,
        sample_index: int = 0,
        eos_token_ids: tuple[int, ...] = (),
        processors: tuple[LogitsProcessor, ...] = (),
        priority: int = 0,
        max_draft_len: int = UNLIMITED,
        adapter: Adapter | None = None,
    ) -> Request:
        """A new request over a copy of `prompt`.

        Raises:
            RequestError: the prompt is empty.
            PromptTooLongError: it leaves no room for an output token within `max_seq_len` tokens.
        """
        if not prompt:
            raise RequestError("the prompt is empty; it must have at least 1 token")
        if len(prompt) >= max_seq_len:
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens, but max_seq_len={max_seq_len} must hold the "
                f"prompt and at least 1 output token; shorten the prompt to {max_seq_len - 1} "
                f"tokens or raise max_seq_len"
            )
        max_output_tokens = params.max_output_tokens(len(prompt), max_seq_len)
        ends = (*eos_token_ids, *params.stop_token_ids)
        limits = max_output_tokens, max_draft_len
        tokens = TokenSequence(id, prompt, *limits, params, seed, sample_index, ends)
        request = cls(
            id=id,
            tokens=tokens,
            num_prompt_tokens=len(prompt),
            params=params,
            seed=seed,
            max_output_tokens=max_output_tokens,
            sample_index=sample_index,
            eos_token_ids=eos_token_ids,
            processors=processors,
            priority=priority,
            max_draft_len=max_draft_len,
            adapter=adapter,
        )
        request.place_adapter(_NO_SLOT)
        return request

    def place_adapter(self, slot: int) -> None:
        """Its adapter, if it has one, lies at ``slot`` among those of the engine. To be said before
        a cache knows it."""
        if self.params.prompt_logprobs is not None:
            # By the identity that an adapter of its own would give it, no other's rows are its
            # prefix: those that come out of a cache are not computed, and say nothing.
            self.tokens.adapt(_PRIVATE + self.id, slot)
        elif self.adapter is not None:
            self.tokens.adapt(self.adapter.number, slot)

    @property
    def reads_own_prompt(self) -> bool:
        """Whether the log probabilities of its prompt are asked for; of several samples the first
        reads them."""
        return self.params.prompt_logprobs is not None and self.sample_index == 0

    @property
    def queue_time(self) -> float | None:
        """Seconds that it waited for its first step; None until then."""
        return None if self.scheduled_time is None else self.scheduled_time - self.arrival_time

    @property
    def output_tokens(self) -> list[int]:
        """The tokens emitted so far (a copy)."""
        return self.tokens[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens it may still emit."""
        return self.num_prompt_tokens + self.max_output_tokens - len(self.tokens)

    @property
    def may_draft(self) -> bool:
        return self.max_draft_len > 0

    @property
    def draft_depth(self) -> int:
        """Depth of the deepest useful draft node, as a step emits at most depth + 1 tokens. 0 or
        less: none is useful."""
        return min(self.remaining_tokens - 1, self.max_draft_len)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Ids that end the text, of whatever kind: nothing after one is ever emitted, so an end
        needs no draft."""
        return (*self.eos_token_ids, *self.params.stop_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None
