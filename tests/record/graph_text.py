"""A normal form of graphs as text: what they compute, without names with counters and paths.

Inputs keep their names, since weights are bound by them. Every other value is numbered in order, as
are symbolic sizes. Integer constants are part of the text by their bytes; floats are weights.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

_SYMBOL = re.compile(r"\b[su]\d+\b")


def digest(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def summary(text: str) -> str:
    """What the record keeps of a graph."""
    return f"{digest(text)}, {len(text.splitlines())} lines"


class _Symbols:
    """Symbolic sizes by the order of their first use."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def rename(self, text: str) -> str:
        return _SYMBOL.sub(lambda m: self.names.setdefault(m[0], f"n{len(self.names)}"), text)


def exported_text(program: torch.export.ExportedProgram) -> str:
    """The normal form of what torch.export made."""
    symbols = _Symbols()
    lines = list(_fx_lines(program.graph_module, symbols))
    for name, value in sorted(program.constants.items()):
        lines.append(f"constant {name} {_tensor(value)}")
    for symbol, limits in program.range_constraints.items():
        if str(symbol) in symbols.names:
            lines.append(symbols.rename(f"{symbol} in {limits.lower} .. {limits.upper}"))
    signature = program.graph_signature
    kinds = [f"{spec.kind.name} {spec.target}" for spec in signature.input_specs]
    lines += [f"input {i} {kind}" for i, kind in enumerate(kinds)]
    written = [s.target for s in signature.output_specs if s.target is not None]
    return "\n".join([*lines, *(f"written {name}" for name in written)]) + "\n"


def _fx_lines(module: torch.fx.GraphModule, symbols: _Symbols) -> Iterable[str]:
    names: dict[str, str] = {}

    def text(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return names[value.name]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(text, value)) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k}={text(value[k])}" for k in sorted(value)) + "}"
        return symbols.rename(str(value))

    for i, node in enumerate(module.graph.nodes):
        names[node.name] = node.name if node.op == "placeholder" else f"%{i}"
        value = symbols.rename(_meta(node.meta.get("val")))
        target = "" if node.op in ("placeholder", "output") else f" {node.target}"
        arguments = f"{text(node.args)} {text(node.kwargs)}" if node.op != "placeholder" else ""
        yield f"{names[node.name]}: {value} = {node.op}{target} {arguments}".rstrip()
    for name, child in module.named_children():
        if isinstance(child, torch.fx.GraphModule):
            yield f"in {name}:"
            yield from _fx_lines(child, symbols)


def _meta(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_meta, value)) + "]"
    return "" if value is None else str(value)


def _tensor(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(type(value).__name__)
    shape = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if value.is_floating_point():
        return shape
    return f"{shape} {digest(value.contiguous().numpy().tobytes())}"


def onnx_text(path: Path) -> str:
    """The normal form of an ONNX file; initialisers that lie in other files by name and shape."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    symbols = _Symbols()
    lines = [f"opset {o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import]
    lines += _onnx_lines(model.graph, {}, symbols)
    for function in model.functions:
        lines.append(f"function {function.domain} {function.name}")
        names = {name: f"in{i}" for i, name in enumerate(function.input)}
        lines += _onnx_nodes(function.node, names, symbols)
    return "\n".join(lines) + "\n"


def _onnx_lines(graph: Any, outer: dict[str, str], symbols: _Symbols) -> list[str]:
    import onnx

    names, lines = dict(outer), []
    for value in graph.input:
        names[value.name] = value.name
        lines.append(f"input {value.name} {_onnx_type(value.type, symbols)}")
    for tensor in graph.initializer:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        place = [e.value for e in tensor.external_data if e.key == "location"]
        content = f"in {place[0]}" if place else _onnx_constant(tensor)
        # Constants of the graph itself are named by counters.
        names[tensor.name] = tensor.name if place else f"<{kind}{list(tensor.dims)} {content}>"
        if place:
            lines.append(f"weight {tensor.name} {kind}{list(tensor.dims)} {content}")
    lines += _onnx_nodes(graph.node, names, symbols)
    for value in graph.output:
        kind = _onnx_type(value.type, symbols)
        lines.append(f"output {value.name} = {names[value.name]} {kind}")
    return lines


def _onnx_nodes(nodes: Iterable[Any], names: dict[str, str], symbols: _Symbols) -> list[str]:
    lines: list[str] = []
    for node in nodes:
        given = ", ".join(names[name] if name else "-" for name in node.input)
        attributes = " ".join(_onnx_attribute(a, names, symbols) for a in node.attribute)
        made = []
        for name in node.output:
            names[name] = f"%{len(names)}"
            made.append(names[name])
        kind = f"{node.domain + '.' if node.domain else ''}{node.op_type}"
        lines.append(f"{', '.join(made)} = {kind}({given}) {attributes}".rstrip())
    return lines


def _onnx_attribute(attribute: Any, names: dict[str, str], symbols: _Symbols) -> str:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return f"{attribute.name}={_onnx_constant(value)}"
    if isinstance(value, onnx.GraphProto):
        return f"{attribute.name}=({'; '.join(_onnx_lines(value, names, symbols))})"
    return f"{attribute.name}={value}"


def _onnx_constant(tensor: Any) -> str:
    import onnx

    value = onnx.numpy_helper.to_array(tensor)
    return str(value.tolist()) if value.size <= 8 else digest(value.tobytes())


def _onnx_type(kind: Any, symbols: _Symbols) -> str:
    tensor = kind.tensor_type
    sizes = [symbols.rename(d.dim_param) or d.dim_value for d in tensor.shape.dim]
    return f"{tensor.elem_type}{sizes}"
