"""OnnxBackend: ONNX Runtime on a CPU, with the graphs from which TensorRT engines are built as
well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trtspec.backends.environment import Environment
from trtspec.backends.onnx.export import link_graphs, require_onnx
from trtspec.backends.onnx.session import OnnxSession, require_onnxruntime
from trtspec.backends.session import GraphSession
from trtspec.backends.shape import EngineShape
from trtspec.backends.slots.backend import SlotBackend
from trtspec.backends.slots.padding import View
from trtspec.errors import ConfigError


class OnnxBackend(SlotBackend):
    """Its graphs cut the masks, and give attention only the beginning of each cache, as long as the
    mask.

    ONNX Runtime's Attention works on all keys and values that it is given. ``nonpad_kv_seqlen``
    saves nothing: it only adds a mask (1.31, on CPUs). A cache with several heads cannot be bound
    with a shorter length than in memory. Cutting is a copy, which adds 10 to 35 % to the attention
    over as many positions, so it pays if a quarter of a cache is unused. A single row that sees an
    eighth of 2048 positions takes a sixth of the time.
    """

    name = "onnx"
    title = "ONNX Runtime"
    dtypes = ("float32", "float16")
    no_dtype = "ONNX Runtime has no bfloat16 kernels for CPUs"
    compiler = "trtspec.backends.onnx.export"
    matched: frozenset[str] | None = frozenset()
    view = View.STEPS

    def resolve_device(self, asked: str) -> tuple[str, str | None]:
        if asked == "cuda":
            raise ConfigError(
                "backend 'onnx' runs on the CPU, device 'cuda' was asked for; give device 'cpu', "
                "or backend 'aoti'"
            )
        return "cpu", "where backend onnx runs" if asked == "auto" else None

    def environment_to_build(self, device: str, options: Any) -> Environment:
        require_onnx()
        require_onnxruntime()
        return super().environment_to_build(device, options)

    def finish(self, engine: EngineShape, folder: Path) -> None:
        link_graphs(engine, folder)

    def open_graph(
        self,
        file: Path,
        engine: EngineShape,
        weights: Mapping[str, Tensor],
        num_caches: int,
        graph_batches: Sequence[int],
    ) -> GraphSession:
        return OnnxSession(file, weights, num_caches)
