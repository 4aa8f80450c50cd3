"""TensorRTBackend: TensorRT engines from the standard graphs, on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from trtspec.backends.device import device_problem
from trtspec.backends.environment import Environment
from trtspec.backends.onnx import link_graphs, require_onnx
from trtspec.backends.parts import Part
from trtspec.backends.session import GraphSession, Session
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.backends.slots.backend import SlotBackend, SlotParts
from trtspec.backends.slots.padding import View
from trtspec.backends.tensorrt.build_engines import REPORT_NAME, build_engines
from trtspec.backends.tensorrt.cuda_stream import require_cuda_python
from trtspec.backends.tensorrt.flags import add_flags
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.backends.tensorrt.package import (
    buildable_capabilities,
    check_compute_capability,
    tensorrt_version,
)
from trtspec.backends.tensorrt.paged import lower_paged
from trtspec.backends.tensorrt.paged_session import PagedParts
from trtspec.backends.tensorrt.plugins import decide_plugins, load_plugins
from trtspec.backends.tensorrt.session import TensorRTSession
from trtspec.backends.tensorrt.verifying import lower_with_plugins, open_verifying
from trtspec.errors import ConfigError
from trtspec.ops.cuda_ops import register_cuda_ops


class TensorRTBackend(SlotBackend):
    """Its graphs are those of the backend onnx, except for a target with plugins and for all graphs
    over paged caches. Views are powers of two, as each size that occurs has kernels and captured
    steps of its own."""

    name = "tensorrt"
    title = "TensorRT"
    keeps_weights = True
    captures_calls = True
    view = View.POWERS
    options_class = TensorRTConfig
    compiler = "trtspec.backends.onnx.export"
    report = REPORT_NAME
    matched: frozenset[str] | None = frozenset({"compute_capability", "tensorrt"})
    elsewhere = "--backend onnx"

    def add_flags(self, parser: Any) -> None:
        add_flags(parser)

    def resolve_device(self, asked: str) -> tuple[str, str | None]:
        return "cuda", "where TensorRT engines run"

    def check_options(self, options: TensorRTConfig, dtype: str) -> None:
        options.check_dtype(dtype)

    def complete(self, options: TensorRTConfig) -> tuple[TensorRTConfig, list[str]]:
        return decide_plugins(options)

    def options_differ(self, asked: TensorRTConfig, built: TensorRTConfig) -> bool:
        wanted = asked
        if asked.plugins is None:  # whatever the build chose
            wanted = replace(asked, plugins=built.plugins)
        return asked != TensorRTConfig() and wanted != built

    def device_problem(self, device: str) -> str | None:
        return device_problem(device, compiles_kernels=True)

    def environment_here(self, device: str) -> Environment:
        require_cuda_python()
        return replace(Environment.here(device), own=_own())

    def environment_to_build(self, device: str, options: TensorRTConfig) -> Environment:
        require_onnx()
        own, capability = _own(), options.compute_capability
        check_compute_capability(capability)
        if capability is not None:
            return replace(Environment.here(), compute_capability=capability, own=own)
        if self.device_problem(device) is not None:
            raise ConfigError(
                f"there is no GPU here to build for; say which with --compute_capability "
                f"({tensorrt_version()} builds for "
                f"{', '.join(buildable_capabilities() or ['none'])})"
            )
        return replace(Environment.here(device), own=own)

    def memory_to_build_for(self, device: str, options: TensorRTConfig) -> int | None:
        if options.compute_capability is not None or self.device_problem(device) is not None:
            return None
        return super().memory_to_build_for(device, options)

    def finish(self, engine: EngineShape, folder: Path) -> None:
        link_graphs(engine, folder)
        names = [graph.file for graph in self.graphs(engine)]
        reports = build_engines(engine, self._options(engine), names, folder)
        text = "\n".join(report.describe() for report in reports)
        (folder / REPORT_NAME).write_text(text + "\n")

    def has_slots(self, options: TensorRTConfig) -> bool:
        return not options.paged_attention

    def lower_target(self, engine: EngineShape, part: Part) -> Graph:
        if engine.layout.is_slots and self._options(engine).plugins:
            return lower_with_plugins(engine, part)
        return self.lower(engine, engine.target, part)

    def lower(self, engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
        if engine.layout.is_slots:
            return super().lower(engine, network, part)
        return lower_paged(engine, network, part)

    def verifies(self, engine: EngineShape) -> bool:
        """Always: by the plugins of its engine, or by kernels beside it."""
        return bool(self._options(engine).plugins) or register_cuda_ops()

    def parts_class(self, engine: EngineShape) -> type[SlotParts]:
        return SlotParts if engine.layout.is_slots else PagedParts

    def open_target(self, parts: SlotParts) -> Session:
        if not self.verifies(parts.engine):
            return super().open_target(parts)
        has_plugins = bool(self._options(parts.engine).plugins)
        if has_plugins:
            load_plugins()
        if isinstance(parts, PagedParts):
            return parts.target()
        return open_verifying(parts, has_plugins)

    def open_graph(
        self,
        file: Path,
        engine: EngineShape,
        weights: Mapping[str, Tensor],
        num_caches: int,
        graph_batches: Sequence[int],
    ) -> GraphSession:
        return TensorRTSession(
            file,
            num_caches,
            device=engine.device,
            graph_batches=graph_batches,
            refits=self._options(engine).refits_at_load,
        )

    def _options(self, engine: EngineShape) -> TensorRTConfig:
        options: TensorRTConfig = self.parse_options(engine.options)
        return options


def _own() -> dict[str, str]:
    return {"tensorrt": tensorrt_version()}
