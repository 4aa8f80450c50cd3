"""A TensorRT runtime and a CUDA runtime without a GPU, for the logic of `TensorRTSession`.

Device memory is host memory. An engine file names its ONNX graph, which ONNX Runtime runs on the
addresses that a context was given. Streams defer their work until something waits for them, and a
captured call sees, when it is replayed, the addresses and shapes that it was captured with.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import IntFlag
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

from trtspec.backends.onnx.session import OnnxSession, _size
from trtspec.backends.tensorrt import cuda_stream, package
from trtspec.backends.tensorrt.build_engines import profiles as profiles_of
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import engine_shape, graph_names

from .fake_cuda_runtime import FakeCuda

VERSION = "1.7.0"
GPU = "the fake GPU"
_PLAIN = TensorRTConfig()


# -- TensorRT -----------------------------------------------------------------------------------


class ICudaEngine:
    """An engine file's contents: ``graph``, ``profiles`` (of each input its three shapes) and
    whether its weights were ``stripped``."""

    device_memory_size_v2 = 4096

    def __init__(self, fake: FakeTensorRT, plan: dict[str, Any]) -> None:
        self.fake = fake
        self.plan = plan
        self.has_weights = not plan["stripped"]
        self.session = OnnxSession(Path(plan["graph"]), {}, plan["num_caches"])
        self._inputs = [described.name for described in self.session._inputs]
        self.outputs = {described.name: described for described in self.session._outputs}
        self.names = [*self._inputs, *self.outputs]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(plan["profiles"])
        self.num_aux_streams = fake.num_aux_streams

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "INPUT" if name in self._inputs else "OUTPUT"

    def get_tensor_dtype(self, name: str) -> str:
        dtypes = {
            "tensor(float)": "float32",
            "tensor(float16)": "float16",
            "tensor(int64)": "int64",
            "tensor(bool)": "bool",
        }
        described = [*self.session._inputs, *self.session._outputs]
        return dtypes[next(d.type for d in described if d.name == name)]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[list[int]]:
        return self.plan["profiles"][profile_index][name]

    def create_runtime_config(self) -> IRuntimeConfig:
        return IRuntimeConfig(self.fake)

    def create_execution_context(self, runtime_config: IRuntimeConfig) -> IExecutionContext:
        assert runtime_config.strategy == "USER_MANAGED"
        return IExecutionContext(self, runtime_config)


class IRuntimeConfig:
    dynamic_shapes_kernel_specialization_strategy = "LAZY"

    def __init__(self, fake: FakeTensorRT) -> None:
        self._fake = fake
        self.strategy: str | None = None
        self.cache: IRuntimeCache | None = None

    def set_execution_context_allocation_strategy(self, strategy: str) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> IRuntimeCache:
        return IRuntimeCache(self._fake)

    def set_runtime_cache(self, cache: IRuntimeCache) -> bool:
        self.cache = cache
        return True


class IRuntimeCache:
    """The sizes of calls that were compiled for a GPU."""

    def __init__(self, fake: FakeTensorRT) -> None:
        self._fake = fake
        self.kernels: set[str] = set()

    def serialize(self) -> bytes:
        return json.dumps({"gpu": self._fake.gpu, "kernels": sorted(self.kernels)}).encode()

    def deserialize(self, blob: bytes) -> bool:
        stored = json.loads(blob)
        if stored["gpu"] != self._fake.gpu:
            return False
        self.kernels = set(stored["kernels"])
        return True


class IExecutionContext:
    def __init__(self, engine: ICudaEngine, config: IRuntimeConfig) -> None:
        self._engine = engine
        self._config = config
        self._one_size = config.dynamic_shapes_kernel_specialization_strategy == "EAGER"
        self._memory = 0
        self._profile: int | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._aux_streams: list[int] = []

    def set_aux_streams(self, aux_streams: list[int]) -> None:
        self._aux_streams = aux_streams

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._engine.device_memory_size_v2
        self._memory = memory

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self._profile is not None
        low, _, high = self._engine.get_tensor_profile_shape(name, self._profile)
        self._shapes[name] = shape
        return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return name not in self._engine.fake.refused

    def infer_shapes(self) -> list[str]:
        sizes: dict[str, int] = {}
        for described in self._engine.session._inputs:
            if described.name not in self._shapes:
                return [described.name]
            shape = self._shapes[described.name]
            sizes |= {d: s for d, s in zip(described.shape, shape, strict=True) if type(d) is str}
        for name, described in self._engine.outputs.items():
            self._shapes[name] = tuple(_size(dim, sizes) for dim in described.shape)
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def is_stream_capturable(self, stream: int) -> bool:
        return self._one_size and self._engine.fake.captures

    def execute_async_v3(self, stream_handle: int) -> bool:
        fake, engine = self._engine.fake, self._engine
        if not engine.has_weights:
            fake.log.log("ERROR", "the engine has no weights")
            return False
        assert self._memory and self._profile is not None
        own = {stream_handle, *self._aux_streams}
        assert len(own) == 1 + engine.num_aux_streams, "streams that wait for the default one"
        assert own <= fake.cuda.streams.keys()
        stream = fake.cuda.streams[stream_handle]
        size = repr(sorted(self._shapes.items()))
        cache = self._config.cache
        if cache is not None and size not in cache.kernels:
            assert stream.captured is None, "compiling is forbidden in a capture"
            fake.num_compiled += 1
            cache.kernels.add(size)
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        fake.cuda.enqueue(stream_handle, lambda: _execute(engine, shapes, addresses))
        fake.num_executed += 1
        return True


class EngineInvalidityDiagnostics(IntFlag):
    VERSION_MISMATCH = 1
    UNSUPPORTED_CC = 2
    MALFORMED_ENGINE = 32


class Runtime:
    def __init__(self, fake: FakeTensorRT, logger: Any) -> None:
        self._fake = fake
        fake.log = logger

    def get_engine_validity(self, serialized_engine: bytes) -> tuple[str, int]:
        if serialized_engine[:1] != b"{":
            return "INVALID", EngineInvalidityDiagnostics.MALFORMED_ENGINE.value
        if json.loads(serialized_engine)["version"] != VERSION:
            return "INVALID", EngineInvalidityDiagnostics.VERSION_MISMATCH.value
        return "VALID", 0

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
        plan = json.loads(serialized_engine)
        if plan.get("broken"):
            self._fake.log.log("ERROR", "no kernel image for this device")
            return None
        return ICudaEngine(self._fake, plan)


class Refitter:
    def __init__(self, engine: ICudaEngine, logger: Any) -> None:
        self.engine = engine
        self.missing = engine.fake.unknown_weights

    def get_missing_weights(self) -> list[str]:
        return self.missing

    def refit_cuda_engine(self) -> bool:
        self.engine.has_weights = True
        return True


class OnnxParserRefitter:
    num_errors = 0

    def __init__(self, refitter: Refitter, logger: Any) -> None:
        self._refitter = refitter

    def refit_from_file(self, path: str) -> bool:
        self._refitter.engine.fake.refitted.append(Path(path).name)
        return Path(path).is_file()

    def get_error(self, index: int) -> Any:
        raise IndexError(index)


CLASSES = (
    Runtime, ICudaEngine, IRuntimeConfig, IRuntimeCache, IExecutionContext, Refitter,
    OnnxParserRefitter,
)  # fmt: skip
"""Those whose methods the real package must have too."""


class FakeTensorRT:
    """The module. ``captures``: whether contexts can be captured. ``unknown_weights``: those that a
    refit leaves out. ``num_aux_streams``: of each engine. ``refused``: tensors of which no context
    takes an address."""

    __name__ = "tensorrt_rtx"
    __version__ = VERSION
    float32, float16, bfloat16, int64, int32, bool = (
        "float32", "float16", "bfloat16", "int64", "int32", "bool",
    )  # fmt: skip
    TensorIOMode = SimpleNamespace(INPUT="INPUT", OUTPUT="OUTPUT")
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="USER_MANAGED")
    DynamicShapesKernelSpecializationStrategy = SimpleNamespace(EAGER="EAGER", LAZY="LAZY")
    EngineInvalidityDiagnostics = EngineInvalidityDiagnostics
    ILogger = SimpleNamespace(ERROR="ERROR", INTERNAL_ERROR="INTERNAL_ERROR", WARNING="WARNING")
    Refitter = Refitter
    OnnxParserRefitter = OnnxParserRefitter

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.gpu = GPU
        self.captures = True
        self.unknown_weights: list[str] = []
        self.num_aux_streams = 2
        self.refused: set[str] = set()
        self.refitted: list[str] = []
        self.num_compiled = 0
        self.num_executed = 0
        self.log: Any = None

    def Runtime(self, logger: Any) -> Runtime:
        return Runtime(self, logger)


@contextmanager
def installed() -> Iterator[FakeTensorRT]:
    """The fakes in the place of both packages."""
    cuda = FakeCuda()
    fake = FakeTensorRT(cuda)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_stream, "cudart", cuda)
        patch.setattr(cuda_stream, "callers_stream", lambda: 0)
        patch.setattr(package, "trt", fake)
        yield fake


def as_tensorrt(
    folder: Path, options: TensorRTConfig = _PLAIN, device: str = "cpu"
) -> EngineConfig:
    """Make an engine folder of backend onnx one of backend tensorrt, with engines that the fake
    runs, on a device that is the CPU, or is faked there."""
    engine = EngineConfig.read(folder, runs_here=False)
    build = replace(
        engine.build, backend="tensorrt", backend_options=asdict(options), device=device
    )
    environment = replace(engine.environment, own={"tensorrt": f"tensorrt_rtx {VERSION}"})
    engine = replace(engine, build=build, environment=environment)
    engine.write(folder)
    for name in graph_names(engine):
        write_plan(engine, folder / name)
    return engine


def write_plan(engine: EngineConfig, graph: Path, **changes: Any) -> None:
    """The engine file beside a graph. What has no limits of its own is as long as the caches."""
    whole = (engine.layout.tokens_per_block,) * 3
    inputs = onnx.load(str(graph), load_external_data=False).graph.input
    profiles = []
    for limits in profiles_of(engine_shape(engine)):
        shapes = {}
        for value in inputs:
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = [
                [limits.get(d.dim_param, whole)[i] if d.dim_param else d.dim_value for d in dims]
                for i in range(3)
            ]
        profiles.append(shapes)
    plan = {
        "graph": str(graph),
        "version": VERSION,
        "num_caches": sum("_cache_" in value.name for value in inputs),
        "profiles": profiles,
        "stripped": engine.build.backend_options["strip_plan"],
        **changes,
    }
    graph.with_suffix(".engine").write_text(json.dumps(plan))


def _execute(
    engine: ICudaEngine, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]
) -> None:
    def at(name: str) -> Tensor:
        dtype = getattr(torch, engine.get_tensor_dtype(name))
        size = torch.Size(shapes[name]).numel() * dtype.itemsize
        memory = (ctypes.c_byte * size).from_address(addresses[name])
        return torch.frombuffer(memory, dtype=dtype).view(shapes[name])

    inputs = [at(described.name) for described in engine.session._inputs]
    for name in engine.names:
        if name.endswith("_out"):
            assert addresses[name] == addresses[name.removesuffix("_out")], "not in place"
    for name, output in zip(engine.outputs, engine.session.run(inputs), strict=False):
        at(name).copy_(output)
