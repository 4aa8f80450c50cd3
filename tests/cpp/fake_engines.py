"""Engine folders of backend onnx as ``trtspec_benchmark_fake`` takes them for TensorRT's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from trtspec.engine.graphs import graph_names

from ..backends.fake_tensorrt import as_tensorrt


def as_fake_engines(folder: Path) -> None:
    """Make the folder one of backend tensorrt. Its engines say which graphs they stand for, and
    what TensorRT would know of their inputs and outputs."""
    for name in graph_names(as_tensorrt(folder)):
        graph = onnx.load(str(folder / name), load_external_data=False).graph
        path = (folder / name).with_suffix(".engine")
        plan = json.loads(path.read_text())
        plan["inputs"] = [_described(value) for value in graph.input]
        plan["outputs"] = [_described(value) for value in graph.output]
        path.write_text(json.dumps(plan))


def _described(value: Any) -> dict[str, Any]:
    kind = value.type.tensor_type
    return {
        "name": value.name,
        "dtype": onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name,
        "sizes": [size.dim_param or str(size.dim_value) for size in kind.shape.dim],
    }
