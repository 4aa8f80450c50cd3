"""TensorRT engines from an engine folder's ONNX graphs, on a machine with or without a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from trtspec.backends.device import device_problem
from trtspec.backends.shape import EngineShape
from trtspec.backends.slots.lowering import SEEN
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.backends.tensorrt.package import (
    ENGINE_SUFFIX,
    TensorRTLog,
    accepted_class,
    require_tensorrt,
    tensorrt_version,
    trt,
)
from trtspec.backends.tensorrt.paged import paged_profiles
from trtspec.backends.tensorrt.plugins import load_plugins
from trtspec.errors import BuildError
from trtspec.log import logger
from trtspec.writable import check_folder, write_whole

REPORT_NAME = "layers.txt"
"""The report on TensorRT's layers, in the engine folder."""
_ATTENTION = "ATTENTION_INPUT"
_USUAL_VIEW = 2048
"""Positions of a slot for which TensorRT chooses kernels."""


@dataclass(frozen=True)
class LayerReport:
    """TensorRT's layers for one graph. kinds: layers of each kind. precisions: layers by the dtype
    of their first output. attentions: name, dtype of the queries, and whether TensorRT may
    decompose the attention if it has no kernel for it."""

    name: str
    engine_bytes: int
    kinds: Mapping[str, int]
    precisions: Mapping[str, int]
    attentions: tuple[tuple[str, str, bool], ...]

    def describe(self) -> str:
        """One graph in a few lines of text."""
        lines = [f"{self.name}: {self.engine_bytes / 2**20:.1f} MiB"]
        lines.append("  layers     " + _counts(self.kinds))
        lines.append("  precision  " + _counts(self.precisions))
        native = [name for name, _, apart in self.attentions if not apart]
        apart = [name for name, _, apart in self.attentions if apart]
        if self.attentions:
            dtypes = ", ".join(sorted({dtype for _, dtype, _ in self.attentions}))
            lines.append(
                f"  attention  {len(native)} fused, {len(apart)} that TensorRT may take apart "
                f"({dtypes})"
            )
        return "\n".join(lines)


def build_engines(
    engine: EngineShape, options: TensorRTConfig, names: Sequence[str], folder: Path
) -> list[LayerReport]:
    """Build ``{name}.engine`` beside each ``{name}.onnx`` of an engine folder.

    Raises:
        BuildError: TensorRT refuses a graph, or fails.
    """
    require_tensorrt()
    reports = []
    for name in names:
        path = folder / name
        logger.info("build a TensorRT engine of %s", name)
        reports.append(_build(engine, options, path, path.with_suffix(ENGINE_SUFFIX)))
    return reports


def _build(engine: EngineShape, options: TensorRTConfig, graph: Path, target: Path) -> LayerReport:
    log = TensorRTLog()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    if options.plugins:
        load_plugins()
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(graph)):
        errors = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
        raise BuildError(f"TensorRT cannot read {graph.name}: {errors}")
    attentions = tuple(_attentions(network, decompose=engine.dtype_name == "float32"))
    config = builder.create_builder_config()
    _configure(config, options, engine)
    for limits in (profiles if engine.layout.is_slots else paged_profiles)(engine):
        if config.add_optimization_profile(_profile(builder, network, limits)) < 0:
            raise BuildError(f"TensorRT refuses a profile of {graph.name}: {log.text()}")
    cache = _open_timing_cache(config, options)
    bar = _progress_bar(graph.name)
    config.progress_monitor = bar
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildError(_build_failure(graph.name, options, log.text()))
    target.write_bytes(plan)
    _save_timing_cache(cache, options)
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    return LayerReport(
        graph.name,
        plan.nbytes,
        Counter(_name(layer.type) for layer in layers),
        Counter(_name(layer.get_output(0).dtype) for layer in layers if layer.num_outputs),
        attentions,
    )


def _configure(config: Any, options: TensorRTConfig, engine: EngineShape) -> None:
    if options.compute_capability is not None:
        kind = "SM" + options.compute_capability.replace(".", "")
        config.num_compute_capabilities = 1
        if not config.set_compute_capability(getattr(trt.ComputeCapability, kind), 0):
            raise BuildError(f"{tensorrt_version()} does not build for {kind}")
    if options.builder_optimization_level is not None:
        config.builder_optimization_level = options.builder_optimization_level
    verbosity = options.profiling_verbosity.upper()
    config.profiling_verbosity = getattr(trt.ProfilingVerbosity, verbosity)
    if not engine.layout.is_slots:  # the plugin writes the caches in place
        config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if engine.dtype_name == "float32":  # float32 promises the tokens of every other backend
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.strip_plan:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if options.refit:
        config.set_flag(trt.BuilderFlag.REFIT)


def _build_failure(name: str, options: TensorRTConfig, said: str) -> str:
    if options.refits_at_load and device_problem("cuda", compiles_kernels=True) is not None:
        asked = " and ".join(
            f"--{flag}" for flag in ("strip_plan", "refit") if getattr(options, flag)
        )
        return (
            f"TensorRT could not build {name} with {asked}: TensorRT-RTX makes engines that can be "
            f"refitted only on a machine with a GPU, and there is none here; leave {asked} out, or "
            f"build where the GPU is (TensorRT says: {said})"
        )
    return f"TensorRT could not build {name}: {said}"


def _attentions(network: Any, decompose: bool) -> list[tuple[str, str, bool]]:
    """The attentions of a network. There are no fused kernels in float32: there, and only there,
    TensorRT may decompose them."""
    found = []
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        if _name(layer.type) != _ATTENTION:
            continue
        layer.__class__ = trt.IAttentionInputLayer  # as the bindings want it
        attention = layer.attention
        attention.decomposable = decompose
        found.append((attention.name, _name(layer.get_input(0).dtype), decompose))
    return found


def profiles(engine: EngineShape) -> list[dict[str, tuple[int, int, int]]]:
    """Smallest, typical and largest sizes of the dynamic dimensions: for steps that decode or
    verify, and for chunks of one prompt."""
    batch, widest, rows = engine.max_batch_size, engine.rows, engine.verify_rows
    step, chunk = engine.max_num_tokens, min(engine.max_num_tokens, engine.max_seq_len)
    length = engine.layout.tokens_per_block
    seen = (1, min(_USUAL_VIEW, length), length)
    # Beside a chunk, modules are fed the rows that the chunk before could not feed them.
    ahead = max(engine.lookahead, 1)
    verify = {
        "batch": (1, batch, batch),
        "batch_ends": (2, batch + 1, batch + 1),
        "rows": (1, rows, widest),
        "logits_rows": (1, batch * rows, batch * widest),
        "packed_rows": (1, batch, batch * widest),
        SEEN: seen,
    }
    prefill = {
        "batch": (1, 1, 1),
        "batch_ends": (2, 2, 2),
        "rows": (1, chunk, chunk + ahead - 1),
        "logits_rows": (1, 1, chunk),
        "packed_rows": (1, step, step),
        SEEN: seen,
    }
    return [verify, prefill]


def _profile(builder: Any, network: Any, limits: Mapping[str, tuple[int, int, int]]) -> Any:
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        names = [tensor.get_dimension_name(d) for d in range(len(tensor.shape))]
        shapes = [
            tuple(
                limits[name][which] if size == -1 else size
                for size, name in zip(tensor.shape, names, strict=True)
            )
            for which in range(3)
        ]
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *shapes)
    return profile


def _open_timing_cache(config: Any, options: TensorRTConfig) -> Any:
    if options.timing_cache is None:
        return None
    path = Path(options.timing_cache)
    try:
        check_folder(path.parent)
    except OSError as error:
        raise BuildError(f"--timing_cache {path} cannot be written: {error}") from error
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise BuildError(
            f"{path} is no timing cache of this TensorRT and GPU; remove it, or name another "
            "--timing_cache"
        )
    return cache


def _save_timing_cache(cache: Any, options: TensorRTConfig) -> None:
    if cache is None or options.timing_cache is None:
        return
    path = Path(options.timing_cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bytes(cache.serialize()))


class _Bar:
    """A progress bar over the phases of one build."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._title = name
        self._bars: dict[str, Any] = {}

    def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
        if parent is None:
            title = f"{self._title}: {phase}"
            self._bars[phase] = tqdm(total=steps, desc=title, leave=False, disable=None)

    def step_complete(self, phase: str, step: int) -> bool:
        with suppress(KeyError):
            self._bars[phase].update()
        return True

    def phase_finish(self, phase: str) -> None:
        with suppress(KeyError):
            self._bars.pop(phase).close()


_progress_bar = accepted_class(_Bar, "IProgressMonitor")


def _name(member: Any) -> str:
    """``HALF`` of ``DataType.HALF``."""
    return str(member).rpartition(".")[2]


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {name}" for name, count in ordered)
