"""Builds an engine with paged attention on TensorRT-RTX, in a process of its own, which must find
RTX's library by name: ``python -m tests.builder.rtx_creators FOLDER``.

Creators in Python announce what the plugins in C++ announce, so that neither a CUDA compiler nor
TensorRT's headers are needed. Engines are built with them, and none is run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorrt_rtx as trt

from trtspec.backends.tensorrt import plugins
from trtspec.backends.tensorrt.plugin_ops import DOMAIN, PLUGIN_VERSION
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.speculative.options import parse_speculative_config

INTEGER, NUMBER = trt.PluginFieldType.INT32, trt.PluginFieldType.FLOAT32
Shapes = Sequence[Any]


def _as_it_was(shapes: Shapes, fields: dict[str, Any], builder: Any) -> list[Any]:
    return [trt.DimsExprs(shapes[i]) for i in (0, 3, 4)]


def _one_a_row(shapes: Shapes, fields: dict[str, Any], builder: Any) -> list[Any]:
    return [trt.DimsExprs([shapes[0][0]])]


def _of_trees(shapes: Shapes, fields: dict[str, Any], builder: Any) -> list[Any]:
    count = builder.operation(trt.DimensionOperation.SUB, shapes[3][0], builder.constant(1))
    width = builder.constant(fields["width"])
    return [trt.DimsExprs([count, width]), trt.DimsExprs([count])]


_SIZES = dict.fromkeys(("num_heads", "num_kv_heads", "head_dim", "sliding_window"), INTEGER)
KNOWN: dict[str, tuple[dict[str, Any], Callable[..., list[Any]], Callable[..., list[Any]]]] = {
    "PagedTreeAttention": (
        {**_SIZES, "scale": NUMBER, "soft_cap": NUMBER},
        _as_it_was,
        lambda types: [types[0], types[3], types[4]],
    ),
    "KeyedSample": ({}, _one_a_row, lambda types: [trt.int64]),
    "TreeAccept": ({"width": INTEGER}, _of_trees, lambda types: [trt.int32] * 2),
    "TreeMask": ({}, _one_a_row, lambda types: []),
}
"""Of each plugin its fields, and shapes and types of what it gives."""


class Plugin(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):  # type: ignore[misc]
    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        for base in Plugin.__bases__:
            base.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = name, PLUGIN_VERSION, DOMAIN
        self.timing_cache_id = ""
        self.fields = fields
        self.num_outputs = len(KNOWN[name][2]([None] * 5))

    def get_capability_interface(self, kind: Any) -> Any:
        return self

    def clone(self) -> Plugin:
        return Plugin(self.plugin_name, self.fields)

    def get_output_data_types(self, types: Sequence[Any]) -> list[Any]:
        return KNOWN[self.plugin_name][2](types)

    def get_output_shapes(self, shapes: Shapes, of_values: Shapes, builder: Any) -> list[Any]:
        return KNOWN[self.plugin_name][1](shapes, self.fields, builder)

    def supports_format_combination(self, place: int, tensors: Any, num_inputs: int) -> bool:
        return bool(tensors[place].desc.format == trt.TensorFormat.LINEAR)

    def configure_plugin(self, inputs: Any, outputs: Any) -> None:
        """There is nothing to choose."""

    def get_workspace_size(self, inputs: Any, outputs: Any) -> int:
        return 0

    def get_fields_to_serialize(self) -> Any:
        return trt.PluginFieldCollection([])

    def attach_to_context(self, context: Any) -> Plugin:
        return self.clone()

    def on_shape_change(self, inputs: Any, outputs: Any) -> None:
        """As `configure_plugin`."""


class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.plugin_version, self.plugin_namespace = name, PLUGIN_VERSION, DOMAIN
        fields = [trt.PluginField(field, b"", kind) for field, kind in KNOWN[name][0].items()]
        self.field_names = trt.PluginFieldCollection(fields)

    def create_plugin(self, name: str, given: Any, phase: Any) -> Plugin:
        fields = {field.name: field.data[0].item() for field in given}
        assert fields.keys() == KNOWN[self.name][0].keys(), (self.name, fields)
        return Plugin(self.name, fields)


def main(folder: Path) -> None:
    registry = trt.get_plugin_registry()
    creators = [Creator(name) for name in KNOWN]
    assert all(registry.register_creator(creator, DOMAIN) for creator in creators)
    plugins.PLUGIN_LIBRARY = Path(__file__)  # it is not loaded where its creators are known
    options = {"compute_capability": "8.9", "paged_attention": True}
    config = BuildConfig("float16", max_seq_len=128, backend="tensorrt", backend_options=options)
    draft = {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_speculative_tokens": 3}
    build_engine(plan_build("trtspec-tiny", config, parse_speculative_config(draft)), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
