"""SamplingParams: a request's sampling options, checked once, on construction."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.config.guided_decoding import GuidedDecodingParams
from trtspec.config.strict import Foreign, from_dict, strict_config
from trtspec.errors import RequestError

MAX_LOGPROBS = 20
MAX_SAMPLES = 128
MIN_TEMPERATURE = 1e-5
MAX_TEMPERATURE = 1e6

_BEAM = "beam search is not offered; every sequence is sampled on its own (use `n`)"
_GUIDED = "write guided_decoding={'json': ...}, with the key of its kind"
_LOGITS_OUT = "only the log probabilities of sampled tokens are returned (`logprobs`)"
_PROCESSOR = "give functions (output_ids, logits) -> logits as `logits_processors`"

_FOREIGN: dict[str, Foreign] = {
    "best_of": Foreign(
        "only best_of == n is offered; all n sequences are returned",
        lambda value, given: value is None or value == given.get("n", 1),
    ),
    "use_beam_search": Foreign(_BEAM),
    "num_beams": Foreign(_BEAM, (None, 1)),
    "beam_width": Foreign(_BEAM, (None, 1)),
    "beam_width_array": Foreign(_BEAM, (None,)),
    "beam_search_diversity_rate": Foreign(_BEAM, (None, 0, 0.0)),
    "length_penalty": Foreign(_BEAM, (None, 1, 1.0)),
    "early_stopping": Foreign(_BEAM, (None, False, 1)),
    **dict.fromkeys(
        ("json_schema", "regex", "ebnf", "structural_tag", "guided_json", "guided_regex"),
        Foreign(_GUIDED, (None,)),
    ),
    "lookahead_config": Foreign("lookahead decoding is not offered", (None,)),
    "return_context_logits": Foreign(_LOGITS_OUT),
    "return_encoder_output": Foreign("there is no encoder"),
    "additional_model_outputs": Foreign(_LOGITS_OUT, (None, [], ())),
    "return_perf_metrics": Foreign("`metrics` of an output are always kept", (None, False, True)),
    "output_kind": Foreign("generate_async(streaming=True) streams", (None,)),
    "flat_logprobs": Foreign("`logprobs` has one entry a token"),
    "skip_reading_prefix_cache": Foreign(
        "write LLM(kv_cache_config={'enable_block_reuse': False}), for all requests"
    ),
    "skip_clone": Foreign("options are never changed", (None, False, True)),
    "return_generation_logits": Foreign(_LOGITS_OUT),
    "logits_processor": Foreign(_PROCESSOR, (None,)),
    "apply_batched_logits_processor": Foreign(_PROCESSOR),
    "allowed_token_ids": Foreign("give `logit_bias` or `bad_words` instead", (None,)),
    "embedding_bias": Foreign("give `logit_bias` instead", (None,)),
    "bad_token_ids": Foreign("write them as bad_words=[[id], ...]", (None, [], ())),
    "no_repeat_ngram_size": Foreign("see `repetition_penalty`", (None, 0)),
    "prompt_ignore_length": Foreign("penalties count the whole prompt", (None, 0)),
    "top_p_min": Foreign("top_p does not decay", (None,)),
    "top_p_decay": Foreign("top_p does not decay", (None,)),
    "top_p_reset_ids": Foreign("top_p does not decay", (None,)),
    "end_id": Foreign("write ignore_eos=True, stop_token_ids=[id]", (None,)),
    "pad_id": Foreign("rows are packed, there is no padding token", lambda value, given: True),
    "truncate_prompt_tokens": Foreign("shorten the prompt before the call", (None,)),
    "add_special_tokens": Foreign("pass token ids to leave them out", (None, True)),
    "spaces_between_special_tokens": Foreign("the tokenizer decides", (None, True)),
    "exclude_input_from_output": Foreign("outputs never repeat the prompt", (None, True)),
    "do_sample": Foreign(
        "sampling is asked for by temperature > 0, greedy decoding by temperature = 0",
        lambda value, given: value is None or bool(value) == bool(given.get("temperature")),
    ),
    **dict.fromkeys(
        ("disable_spec_decode", "disable_speculative_decoding"),
        Foreign("write speculative={'num_speculative_tokens': 0}", (None, False)),
    ),
    "extra_args": Foreign("no such arguments are known", (None, {})),
}
_ALIASES = {
    "bad": "bad_words",
    "max_new_tokens": "max_tokens",
    "min_length": "min_tokens",
    "random_seed": "seed",
    "structured_outputs": "guided_decoding",
    "guided_decoding_params": "guided_decoding",
    "thinking_token_budget": "thinking_budget",
}


@strict_config(
    aliases={
        "max_draft_len": "num_speculative_tokens",
        "num_assistant_tokens": "num_speculative_tokens",
    },
    error=RequestError,
)
@dataclass(frozen=True)
class RequestSpeculation:
    """How one request is drafted for. num_speculative_tokens: the depth of its drafts, at most the
    engine's; 0 or None: no drafts, at no cost to the draft engine."""

    num_speculative_tokens: int | None

    def __post_init__(self) -> None:
        asked = self.num_speculative_tokens or 0
        _within("num_speculative_tokens", asked, 0, 2**31 - 1)
        object.__setattr__(self, "num_speculative_tokens", asked)


@strict_config(aliases=_ALIASES, foreign=_FOREIGN, none_means_default=True, error=RequestError)
@dataclass(frozen=True)
class SamplingParams:
    """Options of one request; any value that cannot be honoured raises RequestError.

    max_tokens: most tokens to generate (32, as in TensorRT-LLM; vLLM's default is 16). None means
    as many as fit into the model's length. min_tokens: no EOS and no `stop_token_ids` before this
    many tokens; stop strings are ignored until then. temperature: 0 (the default, as in
    TensorRT-LLM) is greedy, and top_k, top_p and min_p then have no effect; above 0 the next token
    is sampled from softmax(logits / temperature). top_k: keep the k best tokens; 0 or -1 is off.
    top_p: keep the smallest set of best tokens with this probability mass; 1 is off. min_p: drop
    tokens less likely than min_p times the best; 0 is off. seed: any 64-bit integer (-1 too). The
    same seed gives the same text whatever else is in the batch and whatever drafts. None draws one,
    which the output reports. repetition_penalty: divides positive and multiplies negative logits of
    tokens in the prompt or the output; 1 is off. presence_penalty, frequency_penalty: subtracted
    once, or once per occurrence, from tokens in the output; within [-2, 2], 0 is off. logit_bias:
    token id -> number added to its logit. bad_words: strings or lists of token ids that must not
    appear; `bad_words_ids` is the resolved form, which the LLM fills from the strings with its
    tokenizer. stop: string(s) that end the text; `include_stop_str_in_output` keeps them. A special
    token in them counts even where it is not shown; a string that is a single special token acts as
    its id in stop_token_ids. stop_token_ids: tokens that end the text. ignore_eos: generate past
    the model's own end token. n: sequences per prompt. logprobs: None, or how many best tokens to
    report per position besides the sampled one (0 to 20), from the raw model. prompt_logprobs: the
    same for each token of the prompt but the first; its rows are then computed, not read from the
    prefix cache. detokenize: False returns token ids only; stop strings then cannot be given.
    return_spec_steps: return the tree of each step and what was accepted of it. speculative:
    ``{"num_speculative_tokens": K}`` limits this request's drafts to depth K, 0 or None disables
    them; by default they are as deep as the engine's. The text is the same. guided_decoding:
    constraints on the text, see `GuidedDecodingParams`; they also decide where the text may end.
    thinking_budget: most tokens between <think> and </think>; then the latter is forced.
    logits_processors: functions ``(output_ids, logits [V]) -> logits [V]``, or with the prompt's
    ids first, that depend on nothing else; or `LogitsProcessor` objects, of which each sequence
    gets a copy. The last three neither change with drafts nor disable them.
    """

    max_tokens: int | None = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int | str, float] = field(default_factory=dict)
    bad_words: str | tuple[str | tuple[int, ...], ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    return_spec_steps: bool = False
    speculative: RequestSpeculation | None = None
    guided_decoding: GuidedDecodingParams | None = None
    thinking_budget: int | None = None
    logits_processors: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _within("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _within("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens={self.min_tokens} must not exceed max_tokens={self.max_tokens}"
            )
        _within("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise RequestError(
                f"temperature={self.temperature!r} must be 0 (greedy) or at least {MIN_TEMPERATURE}"
            )
        _within("top_k", self.top_k, -1, 2**31 - 1)
        _within("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p=0.0 must be above 0 and at most 1 (1 is off)")
        _within("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _within("seed", self.seed, -(2**63), 2**64 - 1)
        _within("repetition_penalty", self.repetition_penalty, 0.0, 1e6)
        if self.repetition_penalty < 1e-6:
            raise RequestError(
                f"repetition_penalty={self.repetition_penalty!r} must be at least 1e-6 (1 is off)"
            )
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("n", self.n, 1, MAX_SAMPLES)
        if self.logprobs == -1:
            raise RequestError(
                "logprobs=-1 is refused: the log probabilities of a whole vocabulary are not "
                f"returned; give how many of the best, 0 to {MAX_LOGPROBS}"
            )
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _within("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if self.thinking_budget is not None:
            _within("thinking_budget", self.thinking_budget, 0, 2**31 - 1)
        for given in self.logits_processors:
            if not callable(given) and not callable(getattr(given, "extend", None)):
                raise RequestError(f"logits_processors holds {given!r:.80}; {_PROCESSOR}")
        if self.guided_decoding is not None and (self.ignore_eos or self.min_tokens):
            option = "ignore_eos=True" if self.ignore_eos else f"min_tokens={self.min_tokens}"
            raise RequestError(
                f"{option} cannot be kept with guided decoding, which says itself where the text "
                "may end; leave it out"
            )
        # One spelling inside: a set "off" value, ids as ints, single strings as tuples.
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        object.__setattr__(self, "logit_bias", _token_biases(self.logit_bias))
        object.__setattr__(self, "stop", _as_tuple(self.stop))
        object.__setattr__(self, "bad_words", _as_tuple(self.bad_words))
        if any(not s for s in self.stop):
            raise RequestError("stop holds an empty string, which would end every text at once")
        if self.stop and not self.detokenize:
            raise RequestError(
                f"stop={list(self.stop)!r} needs the text, but detokenize=False; "
                f"use stop_token_ids or detokenize=True"
            )
        for word in (*self.bad_words, *self.bad_words_ids):
            if not word:
                raise RequestError("bad_words holds an empty entry, which would ban every token")
            if not isinstance(word, str):
                _token_ids("bad_words", word)
        _token_ids("stop_token_ids", self.stop_token_ids)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SamplingParams:
        """From a mapping, for example from JSON, with the constructor's checks."""
        return from_dict(cls, data)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return _as_tuple(self.stop)

    @property
    def token_biases(self) -> dict[int, float]:
        """`logit_bias` with token ids as integers."""
        return _token_biases(self.logit_bias)

    @property
    def banned_sequences(self) -> tuple[tuple[int, ...], ...]:
        """All banned token sequences: `bad_words_ids` and the id lists inside `bad_words`."""
        lists = (w for w in self.bad_words if not isinstance(w, str))
        return tuple(dict.fromkeys((*self.bad_words_ids, *lists)))

    def max_output_tokens(self, num_prompt_tokens: int, max_seq_len: int) -> int:
        """How many tokens may be generated after a prompt of that length: max_tokens, cut to what
        fits (0 or less if nothing fits)."""
        room = max_seq_len - num_prompt_tokens
        return room if self.max_tokens is None else min(self.max_tokens, room)

    def max_draft_len(self, deepest: int) -> int:
        """The depth of the request's drafts, given that drafts are at most `deepest` (0: nothing
        drafts).

        Raises:
            RequestError: it asks for deeper ones.
        """
        asked = deepest if self.speculative is None else self.speculative.num_speculative_tokens
        assert asked is not None, "it was resolved"
        if asked > deepest:
            limit, remedy = f"the drafts here are at most {deepest} deep", "lower it"
            if deepest == 0:
                limit, remedy = "nothing is drafted here", "give 0"
            raise RequestError(
                f"speculative={{'num_speculative_tokens': {asked}}} was asked for, but {limit}; "
                f"{remedy}, or leave it out"
            )
        return asked

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError if these options name a token id that is not below `vocab_size`."""
        named = {
            "logit_bias": list(self.token_biases),
            "stop_token_ids": list(self.stop_token_ids),
            "bad_words": [t for w in self.banned_sequences for t in w],
        }
        for option, ids in named.items():
            if ids and max(ids) >= vocab_size:
                raise RequestError(
                    f"{option} names token id {max(ids)}, but the vocabulary has {vocab_size} ids "
                    f"(0 to {vocab_size - 1})"
                )


def draw_seed() -> int:
    """A random seed, non-negative and below 2**63."""
    return secrets.randbits(63)


def seed_to_int64(seed: int) -> int:
    """A 64-bit seed as the signed integer with the same bits, as the native ops take it."""
    return seed - 2**64 if seed >= 2**63 else seed


def _within(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(f"{name}={value!r} must be between {low} and {high}")


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _token_ids(name: str, ids: tuple[int, ...]) -> None:
    for token in ids:
        if not 0 <= token < 2**31:
            raise RequestError(f"{name} holds token id {token}, which must be 0 or more")


def _token_biases(biases: Mapping[int | str, float]) -> dict[int, float]:
    """Keys as ints (JSON has only string keys); numbers finite in float32."""
    result: dict[int, float] = {}
    for key, bias in biases.items():
        if isinstance(key, str) and not key.strip().isdecimal():
            raise RequestError(f"logit_bias key {key!r} must be a token id")
        token = int(key)
        _token_ids("logit_bias", (token,))
        if not math.isfinite(bias) or abs(bias) > 1e30:
            raise RequestError(f"logit_bias of token {token} is {bias!r}; it must be finite")
        result[token] = bias
    return result
