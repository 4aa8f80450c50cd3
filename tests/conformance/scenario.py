"""Scenarios of the conformance tests: random configs and requests, as JSON objects."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trtspec.config.tree import TreeShape


@dataclass(frozen=True)
class Suffix:
    """Options of suffix decoding."""

    max_tree_depth: int
    max_cached_requests: int
    max_cached_tokens: int
    max_spec_factor: float
    max_spec_offset: float
    min_token_prob: float
    tree: bool


@dataclass(frozen=True)
class Draft:
    """kind: none, ngram, suffix, draft_model or eagle; the rest as far as the kind has it."""

    kind: str
    topk: int = 0
    num_steps: int = 0
    num_draft_tokens: int = 0
    max_draft_len: int = 0
    min_ngram: int = 0
    max_ngram: int = 0
    suffix: Suffix | None = None

    @property
    def has_cache(self) -> bool:
        return self.kind in ("draft_model", "eagle")

    @property
    def max_nodes(self) -> int:
        return self.num_draft_tokens - 1 if self.has_cache else self.max_draft_len

    @property
    def slots(self) -> int:
        return self.topk * (self.num_steps - 1) if self.has_cache else 0


@dataclass(frozen=True)
class Arrival:
    """A request: the step before which it is added, and the one before which it is aborted."""

    id: int
    prompt: list[int]
    arrival: int
    abort: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    sample_index: int
    max_tokens: int
    ignore_eos: bool
    eos_token_ids: list[int]
    stop_token_ids: list[int]
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    min_tokens: int = 0
    logprobs: int | None = None


@dataclass(frozen=True)
class Scenario:
    """Everything that decides what an executor does. failing_*_calls: engine calls that raise."""

    seed: int
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    tokens_per_block: int
    draft_tokens_per_block: int
    num_blocks: int
    draft_num_blocks: int
    mask_words: int
    enable_block_reuse: bool
    vocab: int
    draft_vocab: int
    salt: int
    period: int
    regularity: int
    skill: int
    nan_every: int
    draft: Draft
    failing_target_calls: list[int] = field(default_factory=list)
    failing_draft_calls: list[int] = field(default_factory=list)
    requests: list[Arrival] = field(default_factory=list)

    @property
    def blocks_per_sequence(self) -> int:
        return -(-(self.max_seq_len + self.draft.max_nodes) // self.tokens_per_block)

    @property
    def draft_blocks_per_sequence(self) -> int:
        if not self.draft.has_cache:
            return 0
        return -(-(self.max_seq_len + self.draft.slots) // self.draft_tokens_per_block)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "blocks_per_sequence": self.blocks_per_sequence,
            "draft_blocks_per_sequence": self.draft_blocks_per_sequence,
        }


def _random_draft(rng: random.Random) -> Draft:
    kind = rng.choice(("none", "ngram", "draft_model", "draft_model", "eagle", "eagle"))
    if kind == "none":
        return Draft(kind)
    if kind == "ngram":
        low = rng.randint(1, 3)
        return Draft(kind, max_draft_len=rng.randint(1, 6), min_ngram=low, max_ngram=low + 1)
    if rng.random() < 0.03:
        tree = TreeShape(4, 6, rng.randint(60, 80))  # more rows than a word of the mask has bits
    else:
        k, steps = rng.choice((1, 1, 2, 3)), rng.randint(1, 4)
        most = k + (steps - 1) * k * k
        tree = TreeShape(k, steps, 1 + (steps if k == 1 else rng.randint(1, min(most, 12))))
    return Draft(kind, tree.topk, tree.num_steps, tree.num_draft_tokens)


def _random_arrival(
    rng: random.Random, id: int, vocab: int, bases: list[list[int]], max_output: int
) -> Arrival:
    base = rng.choice(bases)
    prompt = base[: rng.randint(1, len(base))]
    if rng.random() < 0.5:
        prompt[-1] = rng.randrange(vocab)
    arrival = rng.choice((0, 0, rng.randint(0, 12)))
    greedy = rng.random() < 0.5
    return Arrival(
        id=id,
        prompt=prompt,
        arrival=arrival,
        abort=arrival + rng.randint(0, 8) if rng.random() < 0.1 else None,
        temperature=0.0 if greedy else rng.choice((0.3, 1.0, 2.5)),
        top_k=rng.choice((0, 0, -1, 2, 5)),
        top_p=rng.choice((1.0, 1.0, 0.9, 0.5)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        seed=rng.choice((0, 7, -3, rng.getrandbits(62))),
        sample_index=rng.choice((0, 0, 1)),
        max_tokens=rng.randint(1, max_output),
        ignore_eos=rng.random() < 0.2,
        eos_token_ids=[rng.randrange(vocab)] if rng.random() < 0.3 else [],
        stop_token_ids=[rng.randrange(vocab)] if rng.random() < 0.2 else [],
    )


def _random_suffix(rng: random.Random) -> Draft:
    return Draft(
        "suffix",
        max_draft_len=rng.randint(1, 8),
        suffix=Suffix(
            max_tree_depth=rng.randint(2, 9),
            max_cached_requests=rng.choice((10000, -1, 0, 1, 2)),
            max_cached_tokens=rng.choice((1 << 22, 1 << 22, 0, 12)),
            max_spec_factor=rng.choice((1.0, 1.0, 2.5, 0.0)),
            max_spec_offset=rng.choice((0.0, 1.0, -1.0)),
            min_token_prob=rng.choice((0.1, 0.0, 0.4)),
            tree=rng.random() < 0.6,
        ),
    )


def _changed(rng: random.Random, request: Arrival, vocab: int) -> Arrival:
    """The request with options that change its logits, and perhaps with log probabilities."""

    def some_tokens(most: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(rng.randint(1, most))]

    words = [some_tokens(3) for _ in range(rng.choice((0, 0, 1, 3)))]
    biased = dict.fromkeys(some_tokens(2)) if rng.random() < 0.4 else {}
    return replace(
        request,
        repetition_penalty=rng.choice((1.0, 1.3, 0.7)),
        presence_penalty=rng.choice((0.0, 0.0, 1.7, -0.3)),
        frequency_penalty=rng.choice((0.0, 0.0, 0.6, -0.2)),
        logit_bias=[(token, rng.choice((-4.3, 0.7, 11.0))) for token in biased],
        bad_words=words,
        min_tokens=rng.choice((0, rng.randint(0, request.max_tokens))),
        logprobs=rng.choice((None, 0, 3)),
    )


def random_scenario(seed: int) -> Scenario:
    """The same seed gives the same scenario."""
    rng = random.Random(seed)
    draft = _random_draft(rng)
    more = random.Random(f"more of {seed}")  # what came later leaves the rest as it was
    if draft.kind == "none" and more.random() < 0.6:
        draft = _random_suffix(more)
    vocab = rng.choice((2, 3, 8, 20))
    max_prompt, max_output = rng.choice((1, 6, 10, 20)), rng.choice((2, 8, 16, 40))
    bases = [[rng.randrange(vocab) for _ in range(max_prompt)] for _ in range(2)]
    requests = [
        _random_arrival(rng, id, vocab, bases, max_output) for id in range(rng.randint(1, 8))
    ]
    if more.random() < 0.3:
        requests = [_changed(more, r, vocab) if more.random() < 0.7 else r for r in requests]
    batch = rng.randint(1, 5)
    block = rng.randint(1, 5)
    draft_block = rng.choice((block, block, block, 2, 3)) if draft.has_cache else 0
    # The least that the longest request needs, or now and then less: then it is refused.
    longest = max(len(r.prompt) + r.max_tokens for r in requests) - (rng.random() < 0.1)
    spare = rng.choice((0, 0, 1, 2, 4, 12))
    blocks = -(-(longest + draft.max_nodes) // block) + spare
    draft_blocks = 0
    if draft.has_cache:
        draft_blocks = -(-(longest + draft.slots) // draft_block) + rng.choice((0, 1, 3, 12))
    calls = [rng.randint(0, 25)] if rng.random() < 0.06 else []
    draft_calls = [rng.randint(0, 25)] if draft.has_cache and rng.random() < 0.08 else []
    return Scenario(
        seed=seed,
        max_batch_size=batch,
        max_num_tokens=batch + rng.choice((0, 1, 4, 10, 30)),
        max_seq_len=max_prompt + max_output,
        tokens_per_block=block,
        draft_tokens_per_block=draft_block,
        num_blocks=max(blocks, 1),
        draft_num_blocks=draft_blocks,
        mask_words=draft.max_nodes // 64 + rng.choice((1, 1, 2)),
        enable_block_reuse=rng.random() < 0.8,
        vocab=vocab,
        draft_vocab=vocab - 1 if vocab > 3 and rng.random() < 0.2 else vocab,
        salt=rng.getrandbits(62),
        period=rng.randint(1, 5),
        regularity=rng.choice((0, 50, 90)),
        skill=rng.choice((0, 50, 80, 100)),
        nan_every=rng.choice((0,) * 9 + (20,)),
        draft=draft,
        failing_target_calls=calls,
        failing_draft_calls=draft_calls,
        requests=requests,
    )
