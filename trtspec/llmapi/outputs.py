"""The outputs that `LLM.generate` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal, TypeAlias, overload

from trtspec.config.decoding import DecodingConfig
from trtspec.config.sampling import SamplingParams
from trtspec.errors import TrtspecError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.executor.step.prompt_logprobs import PromptLogprobs
from trtspec.executor.step.step_result import SpecStep, TokenLogprobs

Acceptance: TypeAlias = Literal["lossless", "simulated", "lossy_typical"]


def acceptance_of(speculation: DecodingConfig | None, params: SamplingParams) -> Acceptance:
    """The acceptance rule for a request's drafts."""
    if speculation is None:
        return "lossless"
    if speculation.simulate_acceptance is not None:
        return "simulated"
    is_lossy = speculation.typical_acceptance is not None and params.temperature > 0.0
    return "lossy_typical" if is_lossy else "lossless"


_SHOWN = 8
"""How many tokens of a list are printed."""


class _Readable:
    """Prints like a dataclass, but shortens long lists and leaves out fields with default
    values."""

    def __repr__(self) -> str:
        shown = []
        for entry in fields(self):  # type: ignore[arg-type]  # those below are dataclasses
            value = getattr(self, entry.name)
            is_usual = entry.default_factory is MISSING and value == entry.default
            if not is_usual and entry.repr:
                shown.append(f"{entry.name}={_brief(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _brief(value: object) -> str:
    if isinstance(value, list) and len(value) > _SHOWN and not isinstance(value[0], _Readable):
        beginning = ", ".join(map(repr, value[:_SHOWN]))
        return f"[{beginning}, ... {len(value) - _SHOWN} more]"
    return repr(value)


@dataclass(repr=False)
class CompletionOutput(_Readable):
    """One generated sequence.

    ``finish_reason`` is "stop" (EOS, a stop token or a stop string; ``stop_reason`` says which),
    "length", "abort", "error", or None while it runs. ``logprobs``, if requested, has one entry per
    token, from the raw model; ``cumulative_logprob`` is their sum over the sampled tokens. ``seed``
    reproduces this sequence (with the same sample index). ``spec_steps``, if requested, has one
    entry per step that emitted tokens. ``first_token_time`` and ``finish_time`` are times of
    `time.monotonic`; ``queue_time`` is the seconds until its first step, None before.
    ``num_cached_tokens``: prompt tokens that came from the prefix cache; 0 until the first step,
    and the same with speculation and without. ``kv_transfer_params`` says where its hidden states
    were written (``hidden_states_path``), with the method extract_hidden_states.
    """

    index: int
    seed: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    spec_steps: list[SpecStep] | None = field(default=None, repr=False)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    metrics: SpeculativeMetrics = field(default_factory=SpeculativeMetrics)
    queue_time: float | None = field(default=None, repr=False)
    num_cached_tokens: int = 0
    first_token_time: float | None = field(default=None, repr=False)
    finish_time: float | None = field(default=None, repr=False)
    kv_transfer_params: Mapping[str, str] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def add(self, gained: CompletionOutput) -> None:
        """Take in what the sequence gained: texts, tokens, logprobs and steps are appended, the
        rest is replaced."""
        for name, new in vars(gained).items():
            if name in ("text", "token_ids", "logprobs", "spec_steps"):
                before = getattr(self, name)
                new = before + new if before and new else before or new
            setattr(self, name, new)


@dataclass(repr=False)
class RequestOutput(_Readable):
    """One prompt with its ``n`` sequences; ``error`` is set if any of them failed.

    ``acceptance`` is the acceptance rule that was in use: "lossless" (the text is the model's own),
    "simulated" (``simulate_acceptance``: the text is meaningless) or "lossy_typical".
    ``prompt_logprobs``, if they were asked for: one entry a token of the prompt, None for the first
    (and, while the prompt is read, for those to come).

    It can be indexed like a list of one, for code that expects a list: ``outputs[0]``.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    error: TrtspecError | None = None
    acceptance: Acceptance = "lossless"
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def add_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Take in those of a part of the prompt."""
        assert self.prompt_logprobs is not None, "they were asked for"
        end = found.first + len(found.entries)
        self.prompt_logprobs[found.first : end] = found.entries

    def add(self, gained: RequestOutput) -> None:
        """Take in what sequences of the prompt gained; see `growth`."""
        for each in gained.outputs:
            self.outputs[each.index].add(each)
        if gained.prompt_logprobs is not None:
            self.prompt_logprobs = gained.prompt_logprobs

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[RequestOutput]:
        yield self

    @overload
    def __getitem__(self, index: int) -> RequestOutput: ...

    @overload
    def __getitem__(self, index: slice) -> list[RequestOutput]: ...

    def __getitem__(self, index: int | slice) -> RequestOutput | list[RequestOutput]:
        return [self][index]

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the first sequence found in the prefix cache."""
        return self.outputs[0].num_cached_tokens if self.outputs else 0

    @property
    def kv_transfer_params(self) -> Mapping[str, str] | None:
        """The parameters of the first sequence; with ``n`` > 1 each sequence has its own."""
        return self.outputs[0].kv_transfer_params if self.outputs else None

    @property
    def metrics(self) -> SpeculativeMetrics:
        """Speculation metrics over all sequences of the prompt."""
        return SpeculativeMetrics.merged(output.metrics for output in self.outputs)


@dataclass(frozen=True)
class EngineLoad:
    """How busy an LLM is, and what it has done since it started.

    ``kv_cache_usage`` is the share (0 to 1) of blocks in use, of the fullest cache;
    ``step_seconds`` is how long the current step has taken so far. ``num_failed_steps_in_a_row``
    counts the steps that have failed as a whole since the last successful one; ``last_failure`` is
    the latest reason.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_prompt_tokens: int
    num_generated_tokens: int
    step_seconds: float
    num_failed_steps_in_a_row: int = 0
    last_failure: str | None = None

    @classmethod
    def merged(cls, loads: Sequence[EngineLoad]) -> EngineLoad:
        """That of equal LLMs together (at least one): counts are added, the usage is the mean.
        Together they hang or fail only as far as each of them does."""
        failing = min(loads, key=lambda load: load.num_failed_steps_in_a_row)
        return cls(
            num_running=sum(load.num_running for load in loads),
            num_waiting=sum(load.num_waiting for load in loads),
            kv_cache_usage=sum(load.kv_cache_usage for load in loads) / len(loads),
            num_prompt_tokens=sum(load.num_prompt_tokens for load in loads),
            num_generated_tokens=sum(load.num_generated_tokens for load in loads),
            step_seconds=min(load.step_seconds for load in loads),
            num_failed_steps_in_a_row=failing.num_failed_steps_in_a_row,
            last_failure=failing.last_failure,
        )
