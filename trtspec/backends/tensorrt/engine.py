"""TensorRTEngine: one deserialised engine, the shapes that it accepts, and contexts to run it
in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.tensorrt.cuda_stream import CudaStream
from trtspec.backends.tensorrt.package import (
    ENGINE_SUFFIX,
    TensorRTLog,
    require_tensorrt,
    tensorrt_version,
)
from trtspec.backends.tensorrt.runtime_cache import SUFFIX, open_runtime_cache
from trtspec.errors import EngineError

VERIFY, PREFILL = 0, 1
PROFILE_NAMES = ("verify", "prefill")
"""The optimisation profiles of every engine: steps that decode or verify, chunks of one prompt."""

_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "bool")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BoundTensor:
    """An input or output: its name, and its dtype for torch."""

    name: str
    dtype: torch.dtype


class TensorRTEngine:
    """The engine of a graph in an engine folder, on the current device.

    Its contexts share one scratch memory, so only one of them may run at a time: they all run on
    ``stream``.
    """

    def __init__(
        self, graph: Path, stream: CudaStream, device: torch.device, refits: bool = False
    ) -> None:
        """``graph``: the ONNX file that the engine beside it was built from. ``refits``: take the
        weights from that file's folder.

        Raises:
            EngineError: the file is missing, or TensorRT refuses it here.
        """
        self._trt = require_tensorrt()
        self.path = graph.with_suffix(ENGINE_SUFFIX)
        self._stream = stream
        self._log = TensorRTLog()
        self._runtime = self._trt.Runtime(self._log)
        self._engine = self._deserialize()
        if refits:
            self._refit(graph)
        self._config = self._engine.create_runtime_config()
        self._config.set_execution_context_allocation_strategy(
            self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        self._cache = open_runtime_cache(self.path.with_suffix(SUFFIX), self._config)
        size = self._engine.device_memory_size_v2
        self._scratch: Tensor = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
        count = max(self._engine.num_aux_streams, 0)
        self._auxiliary = [CudaStream() for _ in range(count)]
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        of_input = self._trt.TensorIOMode.INPUT
        inputs = [name for name in names if self._engine.get_tensor_mode(name) == of_input]
        dtypes = {getattr(self._trt, name): getattr(torch, name) for name in _DTYPES}
        bound = {n: BoundTensor(n, dtypes[self._engine.get_tensor_dtype(n)]) for n in names}
        self.inputs = [bound[name] for name in inputs]
        self.outputs = [bound[name] for name in names if name not in inputs]
        self._limits = [
            {name: self._limits_of(name, profile) for name in inputs}
            for profile in range(self._engine.num_optimization_profiles)
        ]

    def find_profile(self, shapes: Mapping[str, Shape]) -> int:
        """The first profile that accepts inputs of these shapes.

        Raises:
            EngineError: none does.
        """
        misfits = []
        for profile, limits in enumerate(self._limits):
            wrong = [name for name, shape in shapes.items() if not _fits(shape, *limits[name])]
            if not wrong:
                return profile
            name = wrong[0]
            smallest, largest = limits[name]
            misfits.append(
                f"profile {PROFILE_NAMES[profile]} takes {name} from {list(smallest)} to "
                f"{list(largest)}, not {list(shapes[name])}"
            )
        raise EngineError(
            f"{self.path.name} was not built for a call of this size: {'; '.join(misfits)}; "
            "rebuild the engine with a larger max_batch_size or max_num_tokens"
        )

    def new_context(self, profile: int, one_size: bool = False) -> Any:
        """An execution context for one profile. ``one_size``: all its calls have the same shapes.

        Raises:
            EngineError: TensorRT refuses it.
        """
        strategies = getattr(self._trt, "DynamicShapesKernelSpecializationStrategy", None)
        if strategies is not None:
            # Where sizes vary, kernels for one size are compiled beside the work, and general
            # kernels run meanwhile. A graph is captured once, so its kernels must be there by then.
            wanted = strategies.EAGER if one_size else strategies.LAZY
            self._config.dynamic_shapes_kernel_specialization_strategy = wanted
        context = self._engine.create_execution_context(self._config)
        if context is None:
            raise EngineError(
                f"TensorRT makes no execution context of {self.path} ({self._log.text()}); free "
                "memory of the GPU, or rebuild the engine with trtspec-build"
            )
        context.set_device_memory(self._scratch.data_ptr(), self._scratch.numel())
        if not context.set_optimization_profile_async(profile, self._stream.handle):
            raise self.failure(f"profile {profile} cannot be used")
        # Streams that TensorRT makes wait for the default stream, and it waits for them.
        context.set_aux_streams([stream.handle for stream in self._auxiliary])
        self._stream.synchronize()
        return context

    def save_kernels(self) -> None:
        """Keep what TensorRT has compiled so far for the next process."""
        if self._cache is not None:
            self._cache.save()

    def failure(self, what: str) -> EngineError:
        """The error for a refusal, with TensorRT's own message."""
        return EngineError(f"{self.path.name}: {what} (TensorRT says: {self._log.text()})")

    def _deserialize(self) -> Any:
        try:
            plan = self.path.read_bytes()
        except OSError as error:
            raise EngineError(
                f"{self.path} cannot be read ({error}); rebuild the engine with trtspec-build"
            ) from error
        self._check_validity(plan)
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineError(
                f"{tensorrt_version()} does not take {self.path} ({self._log.text()}); rebuild the "
                "engine with trtspec-build on this machine"
            )
        return engine

    def _check_validity(self, plan: bytes) -> None:
        """TensorRT-RTX reports beforehand why an engine does not run: another version, another GPU,
        an old driver."""
        if not hasattr(self._runtime, "get_engine_validity"):
            return
        _, diagnostics = self._runtime.get_engine_validity(plan)
        known = self._trt.EngineInvalidityDiagnostics.__members__.items()
        reasons = [name for name, bit in known if int(diagnostics) & int(bit)]
        if reasons:
            raise EngineError(
                f"{self.path} does not run here on {tensorrt_version()} ({', '.join(reasons)}); "
                "rebuild the engine with trtspec-build on this machine"
            )

    def _refit(self, graph: Path) -> None:
        """Give the engine every weight; the graph names their places in the weight files."""
        refitter = self._trt.Refitter(self._engine, self._log)
        parser = self._trt.OnnxParserRefitter(refitter, self._log)
        if not parser.refit_from_file(str(graph)):
            errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
            raise self._refit_failure("; ".join(errors) or self._log.text())
        missing = refitter.get_missing_weights()
        if missing:
            raise self._refit_failure(f"{len(missing)} weights are missing, first {missing[0]!r}")
        if not refitter.refit_cuda_engine():
            raise self._refit_failure(self._log.text())

    def _refit_failure(self, reason: str) -> EngineError:
        return EngineError(
            f"{self.path} cannot take the weights of its folder ({reason}); rebuild the engine "
            "with trtspec-build"
        )

    def _limits_of(self, name: str, profile: int) -> tuple[Shape, Shape]:
        smallest, _, largest = self._engine.get_tensor_profile_shape(name, profile)
        return tuple(smallest), tuple(largest)


def _fits(shape: Sequence[int], smallest: Sequence[int], largest: Sequence[int]) -> bool:
    return len(shape) == len(smallest) and all(
        low <= size <= high for low, size, high in zip(smallest, shape, largest, strict=True)
    )
