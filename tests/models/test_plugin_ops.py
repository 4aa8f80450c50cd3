"""Nodes of exported graphs have the fields and tensors that the plugins in C++ declare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from trtspec.backends.tensorrt import plugin_ops
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

SOURCES = Path(__file__).resolve().parent.parent.parent / "plugins" / "tensorrt"
FILES = {
    "TreeMask": "tree_mask",
    "KeyedSample": "keyed_sample",
    "TreeAccept": "tree_accept",
    "PagedTreeAttention": "paged_attention",
}
KINDS = {
    "FLOAT": onnx.TensorProto.FLOAT,
    "INT32": onnx.TensorProto.INT32,
    "INT64": onnx.TensorProto.INT64,
}
B, S, T, W, R, V = 2, 4, 8, 3, 5, 7
LENGTH, WIDTH, BLOCKS, BLOCK_SIZE, M = 16, 6, 9, 4, 5
HQ, HKV, D = 4, 2, 8


class Declared(NamedTuple):
    """Of a plugin: its fields and their kinds; inputs and outputs with type and rank. A type that
    depends on a field is None."""

    fields: dict[str, str]
    inputs: list[tuple[str, int | None, int]]
    outputs: list[tuple[str, int | None, int]]


def declared(plugin: str) -> Declared:
    """What the C++ source says: ``{"name", {dims}, {types}}`` of inputs, then of outputs. Dims may
    be a variable; a type that is one of several, or another tensor's, is None."""
    text = (SOURCES / f"{FILES[plugin]}.cpp").read_text()
    kinds = r'(integer|number|word)_(?:from_)?field\("(\w+)"'
    fields = {name: kind for kind, name in re.findall(kinds, text)}
    for name, dims in re.findall(r"std::string> (\w+) = (\{[^}]*\});", text):
        text = text.replace(f'", {name}, {{', f'", {dims}, {{')
    body = text[text.index("return Signature(") :]
    body = body[: body.index(");\n}")]
    pattern = re.compile(r'\{"(\w+)",\s*\{([^{}]*)\},\s*\{([^{}]*)\}(?:, k\w+)?\}')
    tensors = [
        (
            match.start(),
            (match[1], KINDS.get(match[3].rpartition("::k")[2]), match[2].count(",") + 1),
        )
        for match in pattern.finditer(body)
    ]
    border = re.search(r"\}\},\s*\{\{", body)  # of inputs and outputs
    assert border is not None
    return Declared(
        fields,
        [tensor for at, tensor in tensors if at < border.start()],
        [tensor for at, tensor in tensors if at > border.start()],
    )


class AllPlugins(nn.Module):
    def forward(
        self,
        of_mask: list[Tensor],
        logits: Tensor,
        columns: list[Tensor],
        of_trees: list[Tensor],
        of_attention: list[Tensor],
    ) -> tuple[Tensor, ...]:
        mask = plugin_ops.tree_mask(*of_mask, dtype=torch.float16, sliding_window=0)
        sampled = plugin_ops.keyed_sample(logits, SamplingColumns(*columns))
        attended = plugin_ops.paged_tree_attention(
            *of_attention, scale=0.5, sliding_window=3, soft_cap=2.0
        )
        return mask, sampled, *plugin_ops.tree_accept(sampled, *of_trees, WIDTH), *attended


@pytest.fixture(scope="module")
def nodes() -> dict[str, tuple[onnx.NodeProto, dict[str, onnx.TypeProto]]]:
    i64, i32 = torch.int64, torch.int32
    shapes = (((B, S), i64), ((T,), i64), ((T,), i64), ((B + 1,), i32), ((B,), i32), ((B,), i32))
    packed, view = ((T, W), i64), ((LENGTH,), i64)
    of_mask = [torch.zeros(shape, dtype=kind) for shape, kind in (*shapes, packed, view)]
    columns = [torch.zeros(R, dtype=kind) for kind in COLUMN_DTYPES]
    of_trees = [torch.zeros(n, dtype=kind) for n, kind in ((R, i64), (R, i32), (B + 1, i32))]
    rows = [torch.zeros(T, heads, D, dtype=torch.float16) for heads in (HQ, HKV, HKV)]
    caches = [torch.zeros(BLOCKS, BLOCK_SIZE, HKV, D, dtype=torch.float16) for _ in "kv"]
    placed = (((T,), i64), ((T,), i64), ((B, M), i32), *shapes[3:], packed)
    of_attention = [*rows, *caches, *(torch.zeros(shape, dtype=kind) for shape, kind in placed)]
    program = torch.onnx.export(
        AllPlugins().eval(),
        (of_mask, torch.zeros(R, V), columns, of_trees, of_attention),
        dynamo=True,
        opset_version=24,
        optimize=False,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    assert {x.domain: x.version for x in model.opset_import}[plugin_ops.DOMAIN] == 1
    graph = model.graph
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    return {node.op_type: (node, types) for node in graph.node if node.domain}


@pytest.mark.parametrize("plugin", plugin_ops.PLUGINS)
def test_nodes_fit_the_plugins(
    plugin: str, nodes: dict[str, tuple[onnx.NodeProto, dict[str, onnx.TypeProto]]]
) -> None:
    node, types = nodes[plugin]
    told = declared(plugin)
    assert told.inputs and told.outputs
    assert node.domain == plugin_ops.DOMAIN
    given = {attribute.name: attribute for attribute in node.attribute}
    assert given.pop("plugin_namespace").s.decode() == plugin_ops.DOMAIN
    assert given.pop("plugin_version").s.decode() == plugin_ops.PLUGIN_VERSION
    kinds = {
        onnx.AttributeProto.INT: "integer",
        onnx.AttributeProto.FLOAT: "number",
        onnx.AttributeProto.STRING: "word",
    }
    assert {name: kinds[attribute.type] for name, attribute in given.items()} == told.fields
    for names, tensors in ((node.input, told.inputs), (node.output, told.outputs)):
        assert len(names) == len(tensors)
        for name, (label, kind, rank) in zip(names, tensors, strict=True):
            found = types[name].tensor_type
            assert len(found.shape.dim) == rank, label
            assert found.elem_type == (kind or onnx.TensorProto.FLOAT16), label


def test_the_registered_plugins_are_those() -> None:
    source = (SOURCES / "plugin.hpp").read_text()
    assert f'kNamespace = "{plugin_ops.DOMAIN}"' in source
    assert f'kVersion = "{plugin_ops.PLUGIN_VERSION}"' in source
    for plugin in plugin_ops.PLUGINS:
        header = (SOURCES / f"{FILES[plugin]}.hpp").read_text()
        assert f'kName = "{plugin}"' in header


def test_inputs_are_named_as_the_plugins_name_them() -> None:
    """The order, which a node has no names to tell."""
    code = plugin_ops.tree_mask.__code__
    names = [name for name, _, _ in declared("TreeMask").inputs]
    assert list(code.co_varnames[: code.co_argcount]) == names
    names = [name for name, _, _ in declared("KeyedSample").inputs]
    assert ["logits", *SamplingColumns._fields] == names
    code = plugin_ops.paged_tree_attention.__code__
    names = [name for name, _, _ in declared("PagedTreeAttention").inputs]
    assert list(code.co_varnames[: code.co_argcount]) == names
    code = plugin_ops.tree_accept.__code__
    names = [name for name, _, _ in declared("TreeAccept").inputs]
    assert list(code.co_varnames[: code.co_argcount - 1]) == names
