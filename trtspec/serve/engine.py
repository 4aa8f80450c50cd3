"""Engine: the asynchronous front of an `LLM`, which runs in threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from trtspec.config.sampling import SamplingParams
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.llm import LLM
from trtspec.serve.errors import CONTEXT_LENGTH_EXCEEDED, ApiError
from trtspec.serve.token_text import TokenText, longest_token
from trtspec.version import __version__


class Engine:
    """Starts requests without blocking the event loop.

    Prompts are tokenised in one thread beside the loop: in order of arrival, and a long one delays
    nobody's stream. Grammars are compiled in another before that, so that they delay no prompt
    without one.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.tokens = TokenText(llm.tokenizer)
        self.fingerprint = f"trtspec-{__version__}-{llm.config.fingerprints['engine'][:12]}"
        self._max_chars = llm.limits.max_seq_len * longest_token(llm.tokenizer)
        self._intake = ThreadPoolExecutor(1, "trtspec-intake")
        self._grammars = ThreadPoolExecutor(1, "trtspec-grammars")

    def check_lengths(self, prompts: Iterable[str | Sequence[int]], param: str) -> None:
        """ApiError (400) for a prompt that cannot fit, whatever its tokens; so nobody's giant text
        is ever tokenised."""
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

    async def start(
        self, submit: Callable[[], list[GenerationHandle]], params: SamplingParams
    ) -> list[GenerationHandle]:
        """Run `submit` in the intake thread, once what ``params`` ask for is prepared. If the
        caller is cancelled meanwhile, what was started is aborted.

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
        """Abort what runs and stop the threads."""
        for threads in (self._grammars, self._intake):
            threads.shutdown(wait=False, cancel_futures=True)
        self.llm.shutdown()


def _abort(started: asyncio.Future[list[GenerationHandle]]) -> None:
    with contextlib.suppress(Exception):
        for handle in started.result():
            handle.abort()
