"""What `LLM.generate` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Literal, TypeAlias, overload

from trtspec.config.decoding import DecodingConfig
from trtspec.config.sampling import SamplingParams
from trtspec.errors import TrtspecError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.executor.step.step_result import TokenLogprobs

Acceptance: TypeAlias = Literal["lossless", "simulated", "lossy_typical"]


def acceptance_of(speculation: DecodingConfig | None, params: SamplingParams) -> Acceptance:
    """The rule that decides on the drafts of a request."""
    if speculation is None:
        return "lossless"
    if speculation.simulate_acceptance is not None:
        return "simulated"
    is_lossy = speculation.typical_acceptance is not None and params.temperature > 0.0
    return "lossy_typical" if is_lossy else "lossless"


_SHOWN = 8
"""Tokens of a list that are printed."""


class _Readable:
    """Prints as a dataclass does, but for long lists, of which it shows the beginning, and for
    fields that are as they are by default, which it leaves out."""

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
    "length", "abort", "error", or None while it runs. ``logprobs`` has one entry a token when they
    were asked for, from the raw model; ``cumulative_logprob`` is their sum over sampled tokens.
    ``seed`` repeats this very sequence (with the same sample index). ``first_token_time`` and
    ``finish_time`` are of `time.monotonic`, ``queue_time`` is how many seconds it waited for its
    first step; None until then. ``num_cached_tokens``: of the prompt, those that came out of the
    prefix cache; 0 until the first step, and never fewer with speculation. ``kv_transfer_params``
    says where its hidden states were written (``hidden_states_path``), with the method
    extract_hidden_states.
    """

    index: int
    seed: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
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


@dataclass(repr=False)
class RequestOutput(_Readable):
    """One prompt with its ``n`` sequences; ``error`` is set if any of them failed.

    ``acceptance`` says by which rule drafts were accepted: "lossless" (the text is the model's
    own), "simulated" (``simulate_acceptance``: the text means nothing) or "lossy_typical".

    It also reads as a list of itself alone, for code that always gets a list: ``outputs[0]``.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    error: TrtspecError | None = None
    acceptance: Acceptance = "lossless"

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
        """Tokens of the prompt that the first sequence found in the prefix cache."""
        return self.outputs[0].num_cached_tokens if self.outputs else 0

    @property
    def kv_transfer_params(self) -> Mapping[str, str] | None:
        """The parameters of the first sequence; with ``n`` > 1 each has its own."""
        return self.outputs[0].kv_transfer_params if self.outputs else None

    @property
    def metrics(self) -> SpeculativeMetrics:
        """Speculation over all sequences of the prompt."""
        return SpeculativeMetrics.merged(output.metrics for output in self.outputs)


@dataclass(frozen=True)
class EngineLoad:
    """How busy an LLM is, and what it has done since its start.

    ``kv_cache_usage`` is the part (0 to 1) of the fuller cache's blocks that requests hold;
    ``step_seconds`` how long the step under way has taken so far. ``num_failed_steps_in_a_row``
    counts the steps that failed as a whole since the last good one; ``last_failure`` says why the
    latest failed.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_prompt_tokens: int
    num_generated_tokens: int
    step_seconds: float
    num_failed_steps_in_a_row: int = 0
    last_failure: str | None = None
