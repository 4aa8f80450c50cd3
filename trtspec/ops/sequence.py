"""TokenSequence: the tokens of one request, stored in C++ (cpp/include/trtspec/runtime)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch

from trtspec.config.sampling import SamplingParams, seed_to_int64
from trtspec.ops import native  # noqa: F401  registers the class

_class: Any = torch.classes.trtspec.Sequence
_make: Callable[..., tuple[Any, int]] = _class.make
_size: Callable[[int], int] = _class.size
_at: Callable[[int, int], int] = _class.at
_part: Callable[[int, int, int], list[int]] = _class.part
_extend: Callable[[int, Sequence[int]], None] = _class.extend
_adapt: Callable[[int, int, int], None] = _class.adapt
UNLIMITED = 2**63 - 1
"""More tokens than any text has."""


class TokenSequence(Sequence[int]):
    """Read-only: the prompt and the output so far, the newest token last. Every access is one
    native call; slices are lists.

    address: of the C++ request, for native calls, valid as long as this object lives: it has the
    tokens, the sampling options of their rows, and what ends the text. adapter_slot: see `adapt`;
    -1: none.
    """

    __slots__ = ("_owner", "adapter_slot", "address")

    def __init__(
        self,
        id: int,
        prompt: Sequence[int],
        max_output_tokens: int,
        max_draft_len: int = UNLIMITED,
        params: SamplingParams = SamplingParams(),  # noqa: B008  it is frozen
        seed: int = 0,
        sample_index: int = 0,
        end_tokens: Sequence[int] = (),
    ) -> None:
        """From a copy of the ``prompt``. For other arguments see `Request`."""
        noise = seed_to_int64(seed), sample_index
        options = params.temperature, params.top_k, params.top_p, params.min_p, *noise
        given = id, list(prompt), max_output_tokens, max_draft_len, *options, list(end_tokens)
        self._owner, self.address = _make(*given)
        self.adapter_slot = -1

    def __len__(self) -> int:
        return _size(self.address)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if not isinstance(index, slice):
            return _at(self.address, index)
        begin, end = index.start, index.stop
        if index.step is not None:
            return list(self)[index]
        return _part(self.address, 0 if begin is None else begin, UNLIMITED if end is None else end)

    def __iter__(self) -> Iterator[int]:
        return iter(_part(self.address, 0, UNLIMITED))

    def __repr__(self) -> str:
        return f"TokenSequence({list(self)})"

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens, where no `ResourceManager` does it with a step's result."""
        _extend(self.address, list(tokens))

    def adapt(self, adapter: int, slot: int) -> None:
        """From now on an adapter reads it, whose number is above 0 and no other one's ever, and
        which lies at ``slot`` among those of the engine. To be said before a cache knows it."""
        self.adapter_slot = slot
        _adapt(self.address, adapter, slot)
