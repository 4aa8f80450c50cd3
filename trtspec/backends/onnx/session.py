"""OnnxSession: one ONNX graph on ONNX Runtime, with caches written in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.errors import EngineError
from trtspec.optional import import_optional

_TYPES = {
    torch.float32: 1,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
}
"""TensorProto's numbers."""
_BY_NAME = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
}
_MODEL = "model."


def require_onnxruntime() -> Any:
    """ONNX Runtime; ConfigError, naming the extra, if it is missing."""
    return import_optional("onnxruntime", "backend 'onnx'", "trtspec[onnx]")


class OnnxSession:
    """Runs a graph of `trtspec.backends.slots.lowering` on the CPU.

    Weights are passed by reference, so sessions over the same tensors share their memory.
    """

    def __init__(self, path: Path, weights: Mapping[str, Tensor], num_caches: int = 0) -> None:
        """``weights``: by name in the network; the graph may use only some of them. ``num_caches``:
        how many of the last inputs, and of the last outputs, are the same caches.

        Raises:
            ConfigError: ONNX Runtime is missing.
            EngineError: the file cannot be loaded.
        """
        onnxruntime = require_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = torch.get_num_threads()
        self._weights = {
            _MODEL + name: (tensor, onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()))
            for name, tensor in weights.items()
        }
        try:
            for name, (_, value) in self._weights.items():
                options.add_initializer(name, value)
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common base of their own
            raise EngineError(
                f"{path} cannot be loaded ({error}); rebuild the engine with trtspec-build"
            ) from error
        self._inputs = self._session.get_inputs()
        self._outputs = self._session.get_outputs()
        self._num_caches = num_caches
        self._run_options = onnxruntime.RunOptions()

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run on the graph's inputs in order; the caches among them are written in place. Returns
        the other outputs."""
        binding = self._session.io_binding()
        sizes: dict[str, int] = {}
        for described, tensor in zip(self._inputs, inputs, strict=True):
            assert tensor.is_contiguous(), described.name
            _bind(binding.bind_input, described.name, tensor)
            named = zip(described.shape, tensor.shape, strict=True)
            sizes |= {dim: size for dim, size in named if isinstance(dim, str)}
        count = len(self._outputs) - self._num_caches
        outputs = [self._allocate(output, sizes) for output in self._outputs[:count]]
        caches = inputs[len(inputs) - self._num_caches :]
        for described, tensor in zip(self._outputs, [*outputs, *caches], strict=True):
            _bind(binding.bind_output, described.name, tensor)
        try:
            self._session.run_with_iobinding(binding, self._run_options)
        except Exception as error:
            raise EngineError(f"ONNX Runtime failed: {error}") from error
        return outputs

    def _allocate(self, output: Any, sizes: Mapping[str, int]) -> Tensor:
        shape = [_size(dim, sizes) for dim in output.shape]
        return torch.empty(shape, dtype=_BY_NAME[output.type])


def _size(dim: int | str, sizes: Mapping[str, int]) -> int:
    """A dimension's size: a number, a name, or a product of names."""
    if isinstance(dim, int):
        return dim
    return math.prod(sizes[factor] for factor in dim.split("*"))


def _bind(bind: Any, name: str, tensor: Tensor) -> None:
    bind(name, "cpu", 0, _TYPES[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
