"""FrontEnd: the engine of a server, and what the server knows of its texts by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtspec.errors import RequestError
from trtspec.guided.thinking_budget import ThinkingMarks
from trtspec.llmapi.chat_template import choose_template
from trtspec.serve.engine_client import EngineClient
from trtspec.serve.errors import CONTEXT_LENGTH_EXCEEDED, ApiError
from trtspec.serve.schemas import ChatRequest
from trtspec.serve.settings import ServeSettings
from trtspec.serve.token_text import TokenText, longest_token
from trtspec.serve.tools.parser import ToolParser
from trtspec.serve.tools.reader import AnswerReader
from trtspec.serve.tools.registry import AUTO, reasoning_parser, tool_parser
from trtspec.version import __version__


class FrontEnd:
    """Checks prompts and knows how answers are read, with a tokenizer and a chat template but no
    engine.

    engine: generates. prompts: reads prompts, in the engine's `Intake`. tokens: shows them.
    fingerprint: of version and engine, in answers.
    """

    def __init__(self, engine: EngineClient, settings: ServeSettings) -> None:
        self.engine, self.prompts = engine, engine.intake.prompts
        self._settings = settings
        facts, tokenizer = engine.facts, self.prompts.tokenizer
        self.tokens = TokenText(tokenizer)
        self.fingerprint = f"trtspec-{__version__}-{facts.fingerprint[:12]}"
        self.max_seq_len = facts.limits.max_seq_len
        self._max_chars = self.max_seq_len * longest_token(tokenizer)

    def check_lengths(self, prompts: Iterable[str | Sequence[int]], param: str) -> None:
        """Raise ApiError (400) for a prompt that cannot fit whatever its tokens are, so that giant
        texts are never tokenised."""
        for prompt in prompts:
            is_text = isinstance(prompt, str)
            limit = self._max_chars if is_text else self.max_seq_len
            if len(prompt) > limit:
                raise ApiError(
                    400,
                    f"{param} has {len(prompt)} {'characters' if is_text else 'tokens'}; a model "
                    f"of {self.max_seq_len} tokens cannot hold more than {limit}",
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
        template = choose_template(self.prompts.tokenizer, None, has_tools).text
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
