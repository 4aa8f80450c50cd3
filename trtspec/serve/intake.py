"""Intake: reads prompts in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from trtspec.llmapi.prompts import PromptReader

P = ParamSpec("P")
T = TypeVar("T")


class Intake:
    """Prompts are read in order of arrival, beside the event loop, so that a long one delays
    nobody's stream.

    prompts: reads them; used by this thread only, but for its tokenizer.
    """

    def __init__(self, prompts: PromptReader) -> None:
        self.prompts = prompts
        self._thread = ThreadPoolExecutor(1, "trtspec-intake")

    def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """What ``act`` returns, called in that thread."""
        call = self._thread.submit(act, *args, **kwargs)
        return asyncio.wrap_future(call)

    def close(self) -> None:
        """Drop what has not begun."""
        self._thread.shutdown(wait=False, cancel_futures=True)
