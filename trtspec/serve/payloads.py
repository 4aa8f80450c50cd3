"""Payloads: the JSON of an answer, whole or in chunks, and that of /v1/completions."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.executor.step.step_result import TokenLogprobs
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
from trtspec.serve.errors import ApiError, to_json
from trtspec.serve.logprobs import CompletionLogprobs
from trtspec.serve.spec_steps import spec_steps
from trtspec.serve.token_text import TokenText
from trtspec.serve.tools.message import Message

LogprobsForm = Callable[[Sequence[TokenLogprobs]], dict[str, Any]]
Read = Callable[[str, Sequence[int], bool], Message]
"""What of an answer to a prompt (its token ids) is certain, of its text so far, which may be the
whole."""


def usage(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """A request's token counts so far. A prompt and its cached tokens count once, whatever `n`."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = sum(len(c.token_ids) for output in outputs for c in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(output.num_cached_tokens for output in outputs)
        },
    }


def speculation(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """A request's speculation figures, under the names of `SpeculativeMetrics`."""
    merged = SpeculativeMetrics.merged(output.metrics for output in outputs)
    return {"speculative_decoding": merged.to_dict()}


def acceptance_rule(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """The acceptance rule, if the text is not the model's own."""
    rules = {output.acceptance for output in outputs} - {"lossless"}
    return {"acceptance": rules.pop()} if rules else {}


def _transfer(completion: CompletionOutput) -> dict[str, Any]:
    """Where a sequence's hidden states are, if they were written."""
    params = completion.kv_transfer_params
    return {} if params is None else {"kv_transfer_params": dict(params)}


class Payloads(ABC):
    """Builds the JSON of one request. done: what a stream ends with."""

    prefix: ClassVar[str]
    done: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(
        self, request_id: str, model: str, fingerprint: str, tokens: TokenText, samples: int
    ) -> None:
        self.id = f"{self.prefix}-{request_id}"
        self.created, self.model, self.fingerprint = int(time.time()), model, fingerprint
        self._tokens = tokens
        self._samples = samples

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput], metrics: bool) -> dict[str, Any]:
        """The answer to a request without streaming."""

    @abstractmethod
    def chunk(
        self, choices: Sequence[dict[str, Any]], outputs: Sequence[RequestOutput], **more: Any
    ) -> dict[str, Any]:
        """A chunk of the request's stream with these outputs."""

    @abstractmethod
    def growth(
        self, prompt: int, grown: Sequence[CompletionOutput], output: RequestOutput
    ) -> list[dict[str, Any]]:
        """What the chunks are made of for what the sequences of a prompt gained."""

    def opening(self, prompt: int) -> list[dict[str, Any]]:
        """What the chunks that open a stream are made of; none if there are no such chunks."""
        return []

    def encode(self, chunk: Mapping[str, Any]) -> bytes:
        """A chunk as an event of a stream."""
        return b"data: " + to_json(chunk) + b"\n\n"

    def failure(self, error: ApiError) -> dict[str, Any]:
        """The chunk of a stream that fails."""
        return error.to_dict()

    def call_id(self, index: int, place: int) -> str:
        """The id of a tool call of a choice: nine letters and digits, as templates of Mistral
        refuse others when they come back."""
        return hashlib.sha256(f"{self.id} {index} {place}".encode()).hexdigest()[:9]


class ChoicePayloads(Payloads):
    """Answers that are lists of choices. Choice i * n + j is sample j of prompt i."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._forms: dict[int, LogprobsForm] = {}

    @property
    def _shared(self) -> dict[str, Any]:
        ids = {"id": self.id, "created": self.created, "model": self.model}
        return {**ids, "system_fingerprint": self.fingerprint}

    def whole(self, outputs: Sequence[RequestOutput], metrics: bool) -> dict[str, Any]:
        choices = [
            self._choice(i, completion, output)
            for i, output in enumerate(outputs)
            for completion in output.outputs
        ]
        answer = {**self._shared, "object": self.whole_object, "choices": choices}
        answer["usage"] = usage(outputs)
        if metrics:
            answer["metrics"] = speculation(outputs)
        return {**answer, **acceptance_rule(outputs), **_transfer(outputs[0].outputs[0])}

    def chunk(
        self, choices: Sequence[dict[str, Any]], outputs: Sequence[RequestOutput], **more: Any
    ) -> dict[str, Any]:
        chunk = {**self._shared, "object": self.chunk_object, "choices": list(choices)}
        return {**chunk, **acceptance_rule(outputs), **more}

    def growth(
        self, prompt: int, grown: Sequence[CompletionOutput], output: RequestOutput
    ) -> list[dict[str, Any]]:
        choices = []
        for g in grown:
            choice = {"finish_reason": g.finish_reason, **self._delta(prompt, g, output)}
            choice |= spec_steps(g.spec_steps, self._tokens)
            if g.finish_reason is not None:
                choice["stop_reason"] = g.stop_reason
                choice["seed"] = g.seed
                choice |= _transfer(g)
            choices.append(choice)
        return choices

    @abstractmethod
    def _choice(
        self, prompt: int, completion: CompletionOutput, output: RequestOutput
    ) -> dict[str, Any]: ...

    @abstractmethod
    def _delta(
        self, prompt: int, grown: CompletionOutput, output: RequestOutput
    ) -> dict[str, Any]: ...

    @abstractmethod
    def _form(self) -> LogprobsForm: ...

    def _logprobs(self, index: int, entries: Sequence[TokenLogprobs] | None) -> Any:
        if entries is None:
            return None
        if index not in self._forms:
            self._forms[index] = self._form()
        return self._forms[index](entries)

    def _end(self, completion: CompletionOutput) -> dict[str, Any]:
        return {
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            "seed": completion.seed,
            **spec_steps(completion.spec_steps, self._tokens),
            **_transfer(completion),
        }


class CompletionPayloads(ChoicePayloads):
    """Payloads of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, *shared: Any, echo: bool) -> None:
        """``echo``: whole answers begin with the prompt."""
        super().__init__(*shared)
        self._echo = echo

    def _choice(
        self, prompt: int, completion: CompletionOutput, output: RequestOutput
    ) -> dict[str, Any]:
        index = prompt * self._samples + completion.index
        logprobs, text = None, completion.text
        if self._echo:
            tokens = output.prompt_token_ids
            text = (self._tokens.join(tokens) if output.prompt is None else output.prompt) + text
        if completion.logprobs is not None:
            form = CompletionLogprobs(self._tokens)
            of_prompt = form.of_prompt(output) if self._echo else {}
            told = form(completion.logprobs)
            logprobs = {key: [*of_prompt.get(key, ()), *values] for key, values in told.items()}
        return {"index": index, "text": text, "logprobs": logprobs, **self._end(completion)}

    def _delta(self, prompt: int, grown: CompletionOutput, output: RequestOutput) -> dict[str, Any]:
        index = prompt * self._samples + grown.index
        logprobs = self._logprobs(index, grown.logprobs)
        return {"index": index, "text": grown.text, "logprobs": logprobs}

    def _form(self) -> LogprobsForm:
        return CompletionLogprobs(self._tokens)
