"""CapturedCalls: calls replayed as CUDA graphs. CudaGraphSession: an engine's, by their sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.errors import EngineError

_WARM_UPS = 2
_Size = tuple[int, int, int]


class Replayable(Protocol):
    """The result of a capture."""

    def replay(self) -> Any:
        """Run again what was captured, on the buffers that it was captured with."""
        ...


class CapturedCalls:
    """Calls over buffers at fixed addresses, by keys: each is captured once and then replayed.

    One runs at a time: they share their memory, except for outputs, which belong to their graph and
    are valid until it is replayed.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[Replayable, list[Tensor]]] = {}
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def capture(self, key: Hashable, call: Callable[[], list[Tensor]], what: str) -> None:
        """Capture a call, which first runs a few times: it must be one that may be repeated on what
        the buffers hold now. ``what``: the call, for an error.

        Raises:
            EngineError: it cannot be captured: it waits for the device, reads the host's memory, or
                does not fit into memory.
        """
        try:
            graph, outputs, self._pool = record(call, self._pool)
        except RuntimeError as error:
            raise EngineError(
                f"{what} could not be captured as a CUDA graph ({error}); run with "
                "cuda_graph_config=False, or lower free_memory_fraction of kv_cache_config if "
                "memory ran out"
            ) from error
        self._graphs[key] = graph, outputs

    def run(self, key: Hashable, call: Callable[[], list[Tensor]]) -> list[Tensor]:
        """The outputs of the call that was captured under the key, or otherwise of ``call``."""
        if key not in self._graphs:
            return call()
        graph, outputs = self._graphs[key]
        graph.replay()
        return list(outputs)


@dataclass(frozen=True)
class _Buffers:
    """A captured call's own inputs, with their addresses. caches: addresses of the caches that it
    was captured with."""

    inputs: list[Tensor]
    addresses: list[int]
    caches: list[int]


class CudaGraphSession:
    """Wraps a session on CUDA: calls of known sizes are captured once and then replayed.

    Everything in such a call has a fixed size: rows, requests, logits rows. The tensors of the
    first call of a size become the graph's own buffers: later ones are copied into them, unless
    they have the same addresses, so a caller that reuses its buffers pays for no copy. The outputs
    belong to the graph too: they are valid until the next call of the same size. Calls of other
    sizes (prompts) run in the session itself, as do calls with other caches than the first call
    had.
    """

    def __init__(self, session: Session, sizes: Collection[_Size]) -> None:
        """``session``: of an engine that takes rows. ``sizes``: (rows, requests, logits rows) of
        the calls to capture; 0 logits rows: a rollout."""
        self._session = session
        self._sizes = frozenset(sizes)
        self._buffers: dict[_Size, _Buffers] = {}
        self._graphs = CapturedCalls()

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """See `Session.run`.

        Raises:
            EngineError: the call cannot be captured, or inputs of this size had other shapes.
        """
        assert inputs.rows is not None, "calls without rows are not captured"
        logits = 0 if inputs.logits_rows is None else len(inputs.logits_rows)
        size = len(inputs.rows.input_ids), len(inputs.rows.context_lens), logits

        def call() -> list[Tensor]:
            return self._session.run(inputs)

        if size not in self._sizes:
            return call()
        if size not in self._buffers:
            # Writing the same rows to the same slots again changes nothing.
            self._graphs.capture(size, call, f"an engine call of {size[0]} rows")
            own = inputs._replace(caches=()).flat()
            self._buffers[size] = _Buffers(own, _addresses(own), _addresses(inputs.caches))
        if not self._fill(self._buffers[size], inputs, size[0]):
            return call()
        return self._graphs.run(size, call)

    def _fill(self, buffers: _Buffers, inputs: EngineInputs, rows: int) -> bool:
        """Copy the inputs into the graph's buffers; False if they come with other caches."""
        if _addresses(inputs.caches) != buffers.caches:
            return False
        others = inputs._replace(caches=()).flat()
        if _addresses(others) == buffers.addresses:
            return True
        for own, given in zip(buffers.inputs, others, strict=True):
            if own.shape != given.shape:
                raise EngineError(
                    f"a call of {rows} rows was captured with an input of "
                    f"shape {list(own.shape)} and now has {list(given.shape)}; run with "
                    "cuda_graph_config=False, and report it"
                )
            if own.data_ptr() != given.data_ptr():
                own.copy_(given)
        return True


def uncaptured(session: Session) -> Session:
    """A session whose calls may be part of another capture."""
    return session._session if isinstance(session, CudaGraphSession) else session


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def record(call: Callable[[], list[Tensor]], pool: Any) -> tuple[Replayable, list[Tensor], Any]:
    """Capture a call: the graph, its outputs, and the memory pool that it uses (``pool``, or a new
    one for None).

    The call runs a few times before the capture: a first use loads kernels and sets up libraries,
    which a capture forbids.
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
