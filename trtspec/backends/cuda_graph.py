"""CudaGraphSession: replays an engine's calls of certain sizes as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.backends.session import Session
from trtspec.errors import EngineError

_WARM_UPS = 2
# Where a call's inputs hold one row each, and one request each (see `trtspec.backends.session`).
_INPUT_IDS, _CONTEXT_LENS = 0, 5


class Replayable(Protocol):
    """What a capture gives."""

    def replay(self) -> Any:
        """Run again what was captured, on the buffers it was captured with."""
        ...


@dataclass(frozen=True)
class _Captured:
    graph: Replayable
    inputs: list[Tensor]
    addresses: list[int]
    outputs: list[Tensor]


class CudaGraphSession:
    """Another session on CUDA, whose calls of known sizes are captured once and then replayed.

    Everything in such a call has a fixed size: rows, requests, logits rows. The tensors of the
    first call of a size become the graph's own buffers: later ones are copied into them, unless
    they lie at the same addresses, so a caller that fills the same buffers again pays for no copy.
    The outputs are the graph's too: they hold until the next call of the same size. Calls of other
    sizes (prompts) run in the session itself, and so do those with other caches than the first.
    """

    def __init__(
        self, session: Session, sizes: Collection[tuple[int, int]], num_caches: int
    ) -> None:
        """``sizes``: (rows, requests) of the calls to capture. ``num_caches``: the last inputs of a
        call, which are the cache tensors."""
        self._session = session
        self._sizes = frozenset(sizes)
        self._num_caches = num_caches
        self._captured: dict[tuple[int, int], _Captured] = {}
        self._pool: Any = None  # of all graphs: only one runs at a time, and outputs stay alive

    @property
    def num_graphs(self) -> int:
        return len(self._captured)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """See `Session.run`.

        Raises:
            EngineError: the call cannot be captured, or inputs of this size had other shapes.
        """
        size = inputs[_INPUT_IDS].shape[0], inputs[_CONTEXT_LENS].shape[0]
        if size not in self._sizes:
            return self._session.run(inputs)
        captured = self._captured.get(size)
        if captured is None:
            captured = self._captured[size] = self._capture(list(inputs))
        if not self._fill(captured, inputs):
            return self._session.run(inputs)
        captured.graph.replay()
        return list(captured.outputs)

    def _fill(self, captured: _Captured, inputs: Sequence[Tensor]) -> bool:
        """Bring the inputs into the graph's buffers; False if they come with other caches."""
        addresses = [tensor.data_ptr() for tensor in inputs]
        rows = len(inputs) - self._num_caches
        if addresses[rows:] != captured.addresses[rows:]:
            return False
        if addresses == captured.addresses:
            return True
        for own, given in zip(captured.inputs[:rows], inputs, strict=False):
            if own.shape != given.shape:
                raise EngineError(
                    f"a call of {inputs[_INPUT_IDS].shape[0]} rows was captured with an input of "
                    f"shape {list(own.shape)} and now has {list(given.shape)}; run with "
                    "cuda_graph_config=False, and report it"
                )
            if own.data_ptr() != given.data_ptr():
                own.copy_(given)
        return True

    def _capture(self, inputs: list[Tensor]) -> _Captured:
        try:
            graph, outputs, self._pool = record(lambda: self._session.run(inputs), self._pool)
        except RuntimeError as error:
            rows = inputs[_INPUT_IDS].shape[0]
            raise EngineError(
                f"an engine call of {rows} rows could not be captured as a CUDA graph ({error}); "
                "run with cuda_graph_config=False, or lower free_memory_fraction of "
                "kv_cache_config if memory ran out"
            ) from error
        return _Captured(graph, inputs, [tensor.data_ptr() for tensor in inputs], outputs)


def record(call: Callable[[], list[Tensor]], pool: Any) -> tuple[Replayable, list[Tensor], Any]:
    """Capture a call: the graph, the outputs that it writes, and the memory pool it took from
    (``pool``, or a new one for None).

    The call is made a few times before: kernels are loaded and libraries set up when first used,
    which a capture forbids. Writing the same rows to the same slots again changes nothing.
    """
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    pool = torch.cuda.graph_pool_handle() if pool is None else pool
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile: only what this one does is watched.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        outputs = call()
    return graph, outputs, pool
