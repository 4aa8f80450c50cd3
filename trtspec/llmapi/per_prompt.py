"""Options of a call for its prompts: one value for all of them, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from trtspec.config.sampling import SamplingParams
from trtspec.errors import RequestError
from trtspec.llmapi.lora import LoRARequest
from trtspec.llmapi.priorities import read_priorities
from trtspec.models.adapters import Adapter

T = TypeVar("T")


class PromptOptions(NamedTuple):
    """The options of one prompt; see `LLM.generate`."""

    params: SamplingParams
    priority: int
    adapter: Adapter | None


class PromptOptionsReader:
    """Reads the options of a call."""

    def __init__(
        self, reads_priorities: bool, adapter_of: Callable[[LoRARequest | None], Adapter | None]
    ) -> None:
        """``reads_priorities``: whether the scheduling policy uses them. ``adapter_of``: finds the
        requested adapter."""
        self._reads_priorities = reads_priorities
        self._adapter_of = adapter_of

    def read(
        self, count: int, params: Any, priority: Any, lora_request: Any
    ) -> list[PromptOptions]:
        """The options of each of ``count`` prompts.

        Raises:
            RequestError: a value has the wrong type, or a list the wrong type or length; see also
                `read_priorities` and `LoadedAdapters.of`.
        """
        each = (
            _for_each(
                SamplingParams() if params is None else params, count, "SamplingParams", _params
            ),
            read_priorities(priority, count, self._reads_priorities),
            _for_each(lora_request, count, "lora_requests", self._adapter_of),
        )
        return list(map(PromptOptions, *each))


def _for_each(given: Any, count: int, kind: str, read: Callable[[Any], T]) -> list[T]:
    """``read`` applied to one value for all prompts, or to each in a list of ``kind``."""
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        return [read(given)] * count
    found = [read(each) for each in given]
    if len(found) != count:
        raise RequestError(
            f"{count} prompts came with {len(found)} {kind}; give one for all, or one for each"
        )
    return found


def _params(given: Any) -> SamplingParams:
    if not isinstance(given, SamplingParams):
        raise RequestError(
            f"sampling_params must be SamplingParams or a list of them, got "
            f"{type(given).__name__} {given!r:.60}"
        )
    return given
