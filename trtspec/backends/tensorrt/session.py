"""TensorRTSession: one lowered graph as a TensorRT engine, with caches written in place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.tensorrt.cuda_stream import CudaGraph, CudaStream
from trtspec.backends.tensorrt.engine import PREFILL, VERIFY, BoundTensor, TensorRTEngine
from trtspec.errors import EngineError
from trtspec.log import logger

_MAX_GRAPHS = 64

_Size = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]
"""The shapes of a call's inputs, and the addresses of its caches."""


@dataclass(frozen=True)
class _Captured:
    """A captured call. context: the graph's own, whose shapes never change. inputs: its static
    buffers, without the caches."""

    graph: CudaGraph
    context: Any
    inputs: list[Tensor]
    outputs: list[Tensor]


class TensorRTSession:
    """Runs a graph of `trtspec.backends.slots.lowering` on the GPU.

    Tensors are torch's, on the engine's device. A call is enqueued on the session's own stream,
    which is synchronised with torch's on the device, so the host never waits. The outputs of a
    captured call belong to the graph: they are valid until the next call of the same size.
    """

    def __init__(
        self,
        graph: Path,
        num_caches: int = 0,
        *,
        device: str = "cuda",
        graph_batches: Collection[int] = (),
        refits: bool = False,
    ) -> None:
        """``graph``: the ONNX file beside the engine. ``num_caches``: how many of the last inputs,
        and of the last outputs, are the same caches. ``graph_batches``: sequences of the calls that
        are captured as CUDA graphs, a graph for each size that occurs. ``refits``: see
        `TensorRTEngine`.

        Raises:
            ConfigError: TensorRT or cuda-python is missing.
            EngineError: the engine does not load.
        """
        self._stream = CudaStream()
        self._device = torch.device(device)
        self._engine = TensorRTEngine(graph, self._stream, self._device, refits)
        self._num_caches = num_caches
        self._check_caches()
        self._graph_batches = frozenset(graph_batches)
        self._contexts = {p: self._engine.new_context(p) for p in (VERIFY, PREFILL)}
        self._captured: dict[_Size, _Captured | None] = {}
        self._plain_calls = 0

    @property
    def num_graphs(self) -> int:
        """Sizes of calls that are captured."""
        return sum(captured is not None for captured in self._captured.values())

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run on the graph's inputs in order; the caches among them are written in place. Returns
        the other outputs.

        Raises:
            EngineError: the engine was not built for inputs of these shapes, or TensorRT fails.
        """
        for bound, tensor in zip(self._engine.inputs, inputs, strict=True):
            assert tensor.is_contiguous() and tensor.dtype == bound.dtype, bound.name
            assert tensor.device.type == self._device.type, bound.name
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        names = (bound.name for bound in self._engine.inputs)
        profile = self._engine.find_profile(dict(zip(names, shapes, strict=True)))
        if self._is_captured(profile, inputs):
            caches = tuple(cache.data_ptr() for cache in self._caches(inputs))
            outputs = self._replay((shapes, caches), inputs)
            if outputs is not None:
                return outputs
        context = self._contexts[profile]
        outputs = self._bind(context, inputs)
        self._stream.run(lambda: self._execute(context))
        self._plain_calls += 1
        if self._plain_calls.bit_count() == 1:  # kernels compiled beside the work may come late
            self._engine.save_kernels()
        return outputs

    def _is_captured(self, profile: int, inputs: Sequence[Tensor]) -> bool:
        return profile == VERIFY and self._num_caches > 0 and len(inputs[0]) in self._graph_batches

    def _replay(self, size: _Size, inputs: Sequence[Tensor]) -> list[Tensor] | None:
        """Run as a graph; None if calls of this size are not captured."""
        if size not in self._captured and len(self._captured) < _MAX_GRAPHS:
            self._captured[size] = self._capture(inputs)
        captured = self._captured.get(size)
        if captured is None:
            return None
        for own, given in zip(captured.inputs, inputs, strict=False):
            own.copy_(given)
        self._stream.run(captured.graph.launch)
        return list(captured.outputs)

    def _capture(self, inputs: Sequence[Tensor]) -> _Captured | None:
        """Capture a call on buffers of its own. It first runs uncaptured: TensorRT compiles and
        allocates then, which a capture forbids. Writing the same rows to the same slots again
        changes nothing."""
        context = self._engine.new_context(VERIFY, one_size=True)
        caches = self._caches(inputs)
        own = [tensor.clone() for tensor in inputs[: len(inputs) - len(caches)]]
        outputs = self._bind(context, [*own, *caches])
        self._stream.run(lambda: self._execute(context))
        self._engine.save_kernels()
        if not self._is_capturable(context):
            shape = list(inputs[0].shape)
            logger.info("%s: calls of %s are not captured", self._engine.path.name, shape)
            return None
        graph = self._stream.capture(lambda: self._execute(context))
        return _Captured(graph, context, own, outputs)

    def _is_capturable(self, context: Any) -> bool:
        """TensorRT-RTX reports this; what TensorRT cannot capture, the capture refuses."""
        asks = getattr(context, "is_stream_capturable", None)
        return asks is None or bool(asks(self._stream.handle))

    def _bind(self, context: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Give a context its tensors; returns the new outputs without the caches."""
        for bound, tensor in zip(self._engine.inputs, inputs, strict=True):
            if not context.set_input_shape(bound.name, tuple(tensor.shape)):
                raise self._engine.failure(f"{bound.name} cannot be {list(tensor.shape)}")
            self._place(context, bound, tensor)
        unknown = context.infer_shapes()
        if unknown:
            raise self._engine.failure(f"the shapes of {', '.join(unknown)} are not known")
        count = len(self._engine.outputs) - self._num_caches
        outputs = [
            torch.empty(
                tuple(context.get_tensor_shape(bound.name)), dtype=bound.dtype, device=self._device
            )
            for bound in self._engine.outputs[:count]
        ]
        written = [*outputs, *self._caches(inputs)]
        for bound, tensor in zip(self._engine.outputs, written, strict=True):
            self._place(context, bound, tensor)
        return outputs

    def _place(self, context: Any, bound: BoundTensor, tensor: Tensor) -> None:
        if not context.set_tensor_address(bound.name, tensor.data_ptr()):
            raise self._engine.failure(f"{bound.name} cannot lie at {tensor.data_ptr():#x}")

    def _execute(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream.handle):
            raise self._engine.failure("a call failed")

    def _caches(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return inputs[len(inputs) - self._num_caches :]

    def _check_caches(self) -> None:
        """Check that the caches are where `run` expects them: TensorRT orders an engine's
        tensors."""
        given = [tensor.name for tensor in self._engine.inputs]
        made = [tensor.name for tensor in self._engine.outputs]
        caches = given[len(given) - self._num_caches :]
        if made[len(made) - self._num_caches :] != [f"{name}_out" for name in caches]:
            raise EngineError(
                f"{self._engine.path} has inputs {', '.join(given)} and outputs {', '.join(made)}, "
                f"of which the last {self._num_caches} should be its caches; this is a fault of "
                "trtspec, report it"
            )
