"""Engine: the asynchronous interface to an `LLM`, which runs in threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trtspec.config.sampling import SamplingParams
from trtspec.errors import RequestError
from trtspec.guided.thinking_budget import ThinkingMarks
from trtspec.llmapi.chat_template import choose_template
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.llm import LLM
from trtspec.serve.errors import CONTEXT_LENGTH_EXCEEDED, ApiError
from trtspec.serve.schemas import ChatRequest
from trtspec.serve.settings import ServeSettings
from trtspec.serve.token_text import TokenText, longest_token
from trtspec.serve.tools.parser import ToolParser
from trtspec.serve.tools.reader import AnswerReader
from trtspec.serve.tools.registry import AUTO, reasoning_parser, tool_parser
from trtspec.version import __version__

T = TypeVar("T")


class Engine:
    """Starts requests without blocking the event loop.

    Prompts are tokenised in a separate thread, in order of arrival, so a long one delays nobody's
    stream. Grammars are compiled before that in another thread, so that they do not delay prompts
    without one.
    """

    def __init__(self, llm: LLM, settings: ServeSettings) -> None:
        self.llm = llm
        self._settings = settings
        self.tokens = TokenText(llm.tokenizer)
        self.fingerprint = f"trtspec-{__version__}-{llm.config.fingerprints['engine'][:12]}"
        self._max_chars = llm.limits.max_seq_len * longest_token(llm.tokenizer)
        self._intake = ThreadPoolExecutor(1, "trtspec-intake")
        self._grammars = ThreadPoolExecutor(1, "trtspec-grammars")

    def check_lengths(self, prompts: Iterable[str | Sequence[int]], param: str) -> None:
        """Raise ApiError (400) for a prompt that cannot fit whatever its tokens are, so that giant
        texts are never tokenised."""
        for prompt in prompts:
            is_text = isinstance(prompt, str)
            limit = self._max_chars if is_text else self.llm.limits.max_seq_len
            if len(prompt) > limit:
                raise ApiError(
                    400,
                    f"{param} has {len(prompt)} {'characters' if is_text else 'tokens'}; a model "
                    f"of {self.llm.limits.max_seq_len} tokens cannot hold more than {limit}",
                    CONTEXT_LENGTH_EXCEEDED,
                    param,
                )

    def reader(self, body: ChatRequest) -> AnswerReader:
        """How answers to a request are read.

        Raises:
            RequestError: there is no chat template, or nobody knows how it writes calls.
        """
        tools = {t.function.name: t.function.parameters or {} for t in body.offered}
        template, parser = self._parser(bool(tools))
        if tools and parser is None and self._settings.tool_call_parser == AUTO:
            raise RequestError(
                "tools: how this model writes calls is not known from its chat template; start the "
                "server with --tool-call-parser"
            )
        thoughts = None
        if parser is None or not parser.reads_reasoning:
            thoughts = reasoning_parser(self._settings.reasoning_parser, template)
        many = body.parallel_tool_calls is not False
        return AnswerReader(parser, thoughts, tools, many, body.include_reasoning is not False)

    def arguments_as_text(self, has_tools: bool) -> bool:
        """Whether the chat template takes the arguments of earlier calls as text rather than
        values."""
        _, parser = self._parser(has_tools)
        return parser is not None and parser.arguments_as_text

    def _parser(self, has_tools: bool) -> tuple[str, ToolParser | None]:
        """The chat template, and the parser of its calls."""
        template = choose_template(self.llm.tokenizer, None, has_tools).text
        return template, tool_parser(self._settings.tool_call_parser, template)

    def hides(self, texts: Sequence[str]) -> bool:
        """Whether one of them is a special token, which is no part of a text unless asked for."""
        return bool(self.tokens.special & set(texts))

    def is_open(self, prompt: Sequence[int], reader: AnswerReader) -> bool:
        """Whether a prompt ends within reasoning."""
        if reader.reasoning is None:
            return False
        start, end = map(self.tokens.id_of, (reader.reasoning.start, reader.reasoning.end))
        if start is None or end is None:
            return False
        return ThinkingMarks(start, end).is_open_after(prompt)

    async def take_in(self, read: Callable[[], T]) -> T:
        """What ``read`` returns, called where prompts are tokenised."""
        return await asyncio.get_running_loop().run_in_executor(self._intake, read)

    async def start(
        self, submit: Callable[[], list[GenerationHandle]], params: SamplingParams
    ) -> list[GenerationHandle]:
        """Run `submit` in the intake thread, after preparing what ``params`` need. If the caller is
        cancelled meanwhile, what was started is aborted.

        Raises:
            RequestError, EngineError: from `submit`.
            RequestError, ConfigError: from `LLM.prepare`.
        """
        loop = asyncio.get_running_loop()
        if params.guided_decoding is not None:
            await loop.run_in_executor(self._grammars, self.llm.prepare, params)
        started = loop.run_in_executor(self._intake, submit)
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            started.add_done_callback(_abort)
            raise

    def close(self) -> None:
        """Abort running requests and stop the threads."""
        for threads in (self._grammars, self._intake):
            threads.shutdown(wait=False, cancel_futures=True)
        self.llm.shutdown()


def _abort(started: asyncio.Future[list[GenerationHandle]]) -> None:
    with contextlib.suppress(Exception):
        for handle in started.result():
            handle.abort()
