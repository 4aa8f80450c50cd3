"""Graphs with plugins on the CPU: ONNX's reference evaluator, and the plugins as the CPU's ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import Tensor

from trtspec.backends.onnx import OnnxBackend
from trtspec.backends.parts import Part
from trtspec.backends.registry import backends
from trtspec.backends.session import GraphSession, Session
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.backends.slots.backend import SlotParts
from trtspec.backends.tensorrt.build_engines import profiles
from trtspec.backends.tensorrt.paged import lower_paged, paged_profiles
from trtspec.backends.tensorrt.paged_session import PagedParts
from trtspec.backends.tensorrt.plugin_ops import DOMAIN, PLUGIN_VERSION
from trtspec.backends.tensorrt.verifying import lower_with_plugins, open_verifying
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.attention import paged_tree_attention
from trtspec.ops.sampling import sample
from trtspec.ops.tree_mask import tree_mask

Array = np.ndarray[Any, Any]


def _tensors(arrays: Sequence[Array]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


class TreeMask(OpRun):
    op_domain = DOMAIN

    def _run(self, *inputs: Array, **fields: Any) -> tuple[Array]:
        _check_origin(fields)
        padded, *rest, view = _tensors(inputs)
        mask = tree_mask(
            *rest,
            width=padded.shape[1],
            length=len(view),
            sliding_window=fields["sliding_window"],
            dtype=getattr(torch, fields["mask_dtype"]),
        )
        return (mask.numpy(),)


class KeyedSample(OpRun):
    op_domain = DOMAIN

    def _run(self, *inputs: Array, **fields: Any) -> tuple[Array]:
        _check_origin(fields)
        return (sample(*_tensors(inputs)).numpy(),)


class TreeAccept(OpRun):
    op_domain = DOMAIN

    def _run(self, *inputs: Array, **fields: Any) -> tuple[Array, Array]:
        _check_origin(fields)
        rows, emitted = accept_trees(*_tensors(inputs), fields["width"])
        return rows.numpy(), emitted.numpy()


class PagedTreeAttention(OpRun):
    op_domain = DOMAIN

    def _run(self, *inputs: Array, **fields: Any) -> tuple[Array, Array, Array]:
        """Writes into the caches that are given, as the plugin does."""
        _check_origin(fields)
        q, k, v, *caches, positions, slots, tables, starts, contexts, is_tree, mask = (
            torch.from_numpy(array) for array in inputs
        )
        assert is_tree.dtype == torch.int32
        assert list(q.shape[1:]) == [fields["num_heads"], fields["head_dim"]]
        assert list(k.shape[1:]) == [fields["num_kv_heads"], fields["head_dim"]]
        assert len(k) == len(v) == len(q)
        out = paged_tree_attention(
            *(q, k, v, *caches, positions, slots, tables, starts, contexts, is_tree.bool(), mask),
            fields["scale"],
            fields["sliding_window"],
            fields["soft_cap"],
        )
        return out.numpy(), inputs[3], inputs[4]


def _check_origin(fields: Mapping[str, Any]) -> None:
    assert (fields["plugin_version"], fields["plugin_namespace"]) == (PLUGIN_VERSION, DOMAIN)


class ReferenceSession:
    """A `GraphSession` over the reference evaluator. Calls must fit the profiles of TensorRT's."""

    def __init__(self, path: Path, num_caches: int, engine: EngineShape) -> None:
        model = onnx.load(str(path))
        self.dims = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        }
        self.plugins = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
        known = [TreeMask, KeyedSample, TreeAccept, PagedTreeAttention]
        self._evaluator = ReferenceEvaluator(model, new_ops=known)
        self._profiles = (profiles if engine.layout.is_slots else paged_profiles)(engine)
        self._num_caches = num_caches
        self.num_calls = 0
        self.views: set[int] = set()

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.num_calls += 1
        if "view" in self.dims:
            self.views.add(len(inputs[list(self.dims).index("view")]))
        self._check_shapes(inputs)
        given = dict(zip(self.dims, (tensor.numpy() for tensor in inputs), strict=True))
        outputs = _tensors(self._evaluator.run(None, given))
        count = len(outputs) - self._num_caches
        for cache, written in zip(inputs[-self._num_caches :], outputs[count:], strict=True):
            cache.copy_(written)
        return outputs[:count]

    def _check_shapes(self, inputs: Sequence[Tensor]) -> None:
        """A dimension has one size wherever its name stands, as TensorRT wants it."""
        sizes: dict[str, int] = {}
        for (name, dims), tensor in zip(self.dims.items(), inputs, strict=True):
            assert tensor.is_contiguous(), name
            for dim, size in zip(dims, tensor.shape, strict=True):
                assert size == (sizes.setdefault(dim, size) if isinstance(dim, str) else dim), name
        for count, ends in (("batch", "batch_ends"), ("requests", "request_ends")):
            assert count not in sizes or sizes[ends] == sizes[count] + 1
        assert any(
            all(limits[name][0] <= size <= limits[name][2] for name, size in sizes.items())
            for limits in self._profiles
        ), sizes


class VerifyingOnnx(OnnxBackend):
    """Backend onnx whose target samples and accepts as TensorRT's does: by plugins in its graph, on
    the reference evaluator, or by kernels beside it, as with TensorRT-RTX. sessions: over the
    target's graphs."""

    def __init__(self, with_plugins: bool) -> None:
        self.with_plugins = with_plugins
        self.sessions: list[ReferenceSession] = []

    def verifies(self, engine: EngineShape) -> bool:
        return True

    def has_plugins(self, file: Path, num_caches: int) -> bool:
        """Whether a graph has some."""
        return self.with_plugins and file.name == "target.onnx"

    def lower_target(self, engine: EngineShape, part: Part) -> Graph:
        if self.with_plugins:
            return lower_with_plugins(engine, part)
        return super().lower_target(engine, part)

    def open_target(self, parts: SlotParts) -> Session:
        return open_verifying(parts, self.with_plugins)

    def open_graph(
        self,
        file: Path,
        engine: EngineShape,
        weights: Mapping[str, Tensor],
        num_caches: int,
        graph_batches: Sequence[int],
    ) -> GraphSession:
        if not self.has_plugins(file, num_caches):
            return super().open_graph(file, engine, weights, num_caches, graph_batches)
        self.sessions.append(ReferenceSession(file, num_caches, engine))
        return self.sessions[-1]


class Paged(VerifyingOnnx):
    """The same over packed rows and paged caches, drafts as well; attention is a plugin."""

    def __init__(self) -> None:
        super().__init__(with_plugins=True)

    def has_slots(self, options: Any) -> bool:
        return False

    def has_plugins(self, file: Path, num_caches: int) -> bool:
        return num_caches > 0

    def lower_target(self, engine: EngineShape, part: Part) -> Graph:
        return lower_paged(engine, engine.target, part)

    def lower(self, engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
        return lower_paged(engine, network, part)

    def parts_class(self, engine: EngineShape) -> type[SlotParts]:
        return PagedParts

    def open_target(self, parts: SlotParts) -> Session:
        assert isinstance(parts, PagedParts)
        return parts.target()


def accept_in_engine(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceSession]:
    """From now on, backend onnx has the target's graph with plugins; the list grows by its
    sessions."""
    return _install(monkeypatch, VerifyingOnnx(with_plugins=True))


def accept_beside_engine(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceSession]:
    """From now on, backend onnx has what plugins do beside the target's graph."""
    return _install(monkeypatch, VerifyingOnnx(with_plugins=False))


def attend_in_engine(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceSession]:
    """From now on, backend onnx has packed rows, and all graphs with caches have plugins."""
    return _install(monkeypatch, Paged())


def _install(monkeypatch: pytest.MonkeyPatch, backend: VerifyingOnnx) -> list[ReferenceSession]:
    monkeypatch.setitem(backends(), backend.name, backend)  # type: ignore[arg-type]
    return backend.sessions


HOW = {
    "plugins": accept_in_engine,
    "kernels": accept_beside_engine,
    "paged": attend_in_engine,
}
