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
from trtspec.backends.shape import EngineShape, Graph
from trtspec.backends.slots.backend import SlotParts
from trtspec.backends.tensorrt.judging import lower_with_plugins, open_judging
from trtspec.backends.tensorrt.plugin_ops import DOMAIN, PLUGIN_VERSION
from trtspec.ops.acceptance import accept_trees
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


def _check_origin(fields: Mapping[str, Any]) -> None:
    assert (fields["plugin_version"], fields["plugin_namespace"]) == (PLUGIN_VERSION, DOMAIN)


class ReferenceSession:
    """A `GraphSession` over the reference evaluator."""

    def __init__(self, path: Path, num_caches: int) -> None:
        model = onnx.load(str(path))
        self.dims = {
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        }
        self._evaluator = ReferenceEvaluator(model, new_ops=[TreeMask, KeyedSample, TreeAccept])
        self._num_caches = num_caches
        self.num_calls = 0
        self.views: set[int] = set()

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.num_calls += 1
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
        assert sizes["batch_ends"] == sizes["batch"] + 1


class Judging(OnnxBackend):
    """Backend onnx whose target samples and accepts as TensorRT's does: by plugins in its graph, on
    the reference evaluator, or by kernels beside it, as with TensorRT-RTX. sessions: over the
    target's graphs."""

    def __init__(self, with_plugins: bool) -> None:
        self.with_plugins = with_plugins
        self.sessions: list[ReferenceSession] = []

    def judges(self, engine: EngineShape) -> bool:
        return True

    def lower_target(self, engine: EngineShape, part: Part) -> Graph:
        if self.with_plugins:
            return lower_with_plugins(engine, part)
        return super().lower_target(engine, part)

    def open_target(self, parts: SlotParts) -> Session:
        return open_judging(parts, self.with_plugins)

    def open_graph(
        self,
        file: Path,
        engine: EngineShape,
        weights: Mapping[str, Tensor],
        num_caches: int,
        graph_batches: Sequence[int],
    ) -> GraphSession:
        if not self.with_plugins or file.name != "target.onnx":
            return super().open_graph(file, engine, weights, num_caches, graph_batches)
        self.sessions.append(ReferenceSession(file, num_caches))
        return self.sessions[-1]


def accept_in_engine(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceSession]:
    """From now on, backend onnx has the target's graph with plugins; the list grows by its
    sessions."""
    return _install(monkeypatch, Judging(with_plugins=True))


def accept_beside_engine(monkeypatch: pytest.MonkeyPatch) -> list[ReferenceSession]:
    """From now on, backend onnx has what plugins do beside the target's graph."""
    return _install(monkeypatch, Judging(with_plugins=False))


def _install(monkeypatch: pytest.MonkeyPatch, backend: Judging) -> list[ReferenceSession]:
    monkeypatch.setitem(backends(), backend.name, backend)  # type: ignore[arg-type]
    return backend.sessions


HOW = {"plugins": accept_in_engine, "kernels": accept_beside_engine}
