"""EngineClient: what the server asks of an engine, which may be in another process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trtspec.config.sampling import SamplingParams
from trtspec.errors import EngineError
from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.limits import Limits
from trtspec.llmapi.outputs import EngineLoad, RequestOutput
from trtspec.llmapi.prompts import Prompt, PromptReader
from trtspec.serve.intake import Intake


class EngineLostError(EngineError):
    """The process of an engine ended, or can no longer be reached, while a request was under
    way."""


@dataclass(frozen=True)
class EngineFacts:
    """What does not change while an engine is open.

    fingerprint: of the engine folder. limits: how much runs at once, and how long a text may be.
    vocab_size: token ids are below it. draft_sources: the methods that draft, none without
    speculation.
    """

    fingerprint: str
    limits: Limits
    vocab_size: int
    draft_sources: tuple[str, ...]


@dataclass(frozen=True)
class ReplicaFigures:
    """Of an engine that is several replicas.

    loads: of those that are up, by name. num_started: how many there have been. num_resent: of
    requests whose replica was lost before they gained anything, sent to another one. num_lost:
    requests that failed with their replica.
    """

    loads: Mapping[str, EngineLoad]
    num_started: int
    num_resent: int
    num_lost: int


@dataclass(frozen=True)
class Conversation:
    """A prompt that the chat template makes; see `LLM.chat` for the options."""

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]

    def prompt(self, reader: PromptReader) -> Prompt:
        """Apply the template; RequestError: see `PromptReader.chat`."""
        return reader.chat(self.messages, self.options)


@dataclass(frozen=True)
class GenerateRequest:
    """Prompts that begin together; if one is invalid, none does.

    adapter: the name of the one that reads the prompts. stream: what they gain is told step by
    step, else at the end.
    """

    prompts: tuple[Prompt | Conversation, ...]
    params: SamplingParams
    priority: int = 0
    adapter: str | None = None
    stream: bool = False

    def rendered(self, reader: PromptReader) -> list[Prompt]:
        """The prompts, with conversations as the chat template writes them."""
        return [p.prompt(reader) if isinstance(p, Conversation) else p for p in self.prompts]

    def in_tokens(self, reader: PromptReader) -> GenerateRequest:
        """The same request with the token ids of every prompt, beside its text if it was one.

        Raises:
            RequestError: a prompt or conversation cannot be read.
        """
        read = [reader.read(prompt) for prompt in self.rendered(reader)]
        prompts: list[Prompt] = [
            {"prompt_token_ids": ids} | ({} if text is None else {"prompt": text})
            for text, ids in read
        ]
        return replace(self, prompts=tuple(prompts))


class EngineClient(Protocol):
    """An engine as the server sees it. Arguments, results and errors are plain data, which can be
    pickled: `SamplingParams` of requests hold no functions. Everything but `close` is called from
    the event loop and must not block it.

    intake: reads prompts for this engine, here.
    """

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def intake(self) -> Intake: ...

    @property
    def adapters(self) -> Mapping[str, str]:
        """The folders of loaded adapters, by name."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[list[RequestOutput], None]:
        """Submit a request and tell what comes of it. Closing the generator, or cancelling who
        waits for it, aborts what has not ended, also while the request is being submitted.

        The first list has one output for each prompt, in order, as it was accepted: with its token
        ids and the seeds of its sequences, but no text. Those that follow say what outputs with the
        same ids have gained since, which `RequestOutput.add` takes in. Times are those of
        `time.monotonic` in this process.

        Raises:
            RequestError, ConfigError: the request is at fault; nothing was begun.
            EngineLostError: the engine was lost. Before the first gain the request may be sent to
                another one.
            EngineError: a step failed, or the engine cannot serve any more. Which sequences failed
                is told before.
        """

    async def check_health(self) -> None:
        """Raise EngineError if no request can be served any more, EngineLostError if none can be
        for now."""

    async def load(self) -> EngineLoad:
        """How busy the engine is now, or was when it was lost."""

    async def figures(self) -> ExecutorFigures:
        """The engine's figures since its start, or up to its loss."""

    async def replicas(self) -> ReplicaFigures | None:
        """Figures of replicas; None: the engine is one."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter; RequestError, CheckpointError: see `LoadedAdapters.load`."""

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; RequestError: it is not loaded. Requests that have it go on."""

    def close(self) -> None:
        """Abort what runs and free the engine; blocks until that is done."""
