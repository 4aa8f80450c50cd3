"""Export to standard ONNX: from a lowered graph to a file whose weights are in an engine folder."""

from __future__ import annotations

import json
import logging
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trtspec.backends.shape import BORROWED, TARGET, WEIGHTS_NAME, EngineShape, Graph
from trtspec.backends.slots.lowering import part_file
from trtspec.errors import BuildError
from trtspec.models.export_ops import OPSET

try:
    import onnx_ir as ir
    import onnxscript.optimizer

    import onnx
except ImportError:
    onnx = ir = None  # type: ignore[assignment]

TARGET_WEIGHTS = f"{TARGET}/{WEIGHTS_NAME}"
_MODEL = "model."
"""Prefix of a weight's name in a graph, which wraps its network."""


def require_onnx() -> None:
    """Raise BuildError, naming the extra, if a package for export is missing."""
    if onnx is None:
        raise BuildError(
            "exporting ONNX graphs needs onnx and onnxscript; install them: "
            "pip install trtspec[onnx]"
        )


def compile_graph(graph: Graph, path: Path, device: str = "cpu") -> None:
    """Export ``graph`` to ``path``, without its weights. The file depends only on shapes, and is
    the same for all devices.

    Weights are initialisers named as in the module's ``state_dict``. They are declared to be in
    files of these names until `link_weights` says where.

    Raises:
        BuildError: there is no exporter, or it failed.
    """
    require_onnx()
    module, signature = graph.make().eval(), graph.signature
    with warnings.catch_warnings(), _quiet(logging.getLogger("torch.onnx")):
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module,
                signature.args,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=signature.dims,
                input_names=graph.inputs,
                output_names=graph.outputs,
                optimize=False,
                verbose=False,
            )
        except Exception as error:
            raise BuildError(f"{path.name} could not be exported to ONNX: {error}") from error
    assert program is not None
    model: Any = program.model
    exported, weights = model.graph, module.state_dict()
    # Weights are inputs while the graph is simplified: the simplifier merges equal constants, and
    # uninitialised weights may be equal.
    values = [exported.initializers.pop(name) for name in weights if name in exported.initializers]
    sizes = {value.name: value.const_value.nbytes for value in values}
    for value in values:
        value.const_value = None
        exported.inputs.append(value)
    onnxscript.optimizer.optimize_ir(model)
    for value in values:
        exported.inputs.remove(value)
        value.const_value = ir.ExternalTensor(
            value.name, 0, sizes[value.name], dtype=value.dtype, shape=value.shape, name=value.name
        )
        exported.register_initializer(value)
    _name_ends(exported, graph)
    path.write_bytes(ir.to_proto(model).SerializeToString())


def link_graphs(engine: EngineShape, folder: Path) -> None:
    """`link_weights` for all graphs of an engine folder."""
    for network in engine.networks:
        for part in network.parts:
            link_weights(folder / part_file(network, part), folder, network.weights)


def link_weights(path: Path, folder: Path, own: str) -> None:
    """Link an exported graph in ``folder`` to its weights in that folder's safetensors files:
    ``own``, relative to the folder, and the target's for what a draft borrows.

    Raises:
        BuildError: a weight is missing or has another size.
    """
    require_onnx()
    model = onnx.load(str(path), load_external_data=False)
    offsets: dict[str, dict[str, tuple[int, int]]] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        _, borrowed, name = tensor.name.removeprefix(_MODEL).rpartition(BORROWED)
        file = TARGET_WEIGHTS if borrowed else own
        if file not in offsets:
            offsets[file] = _offsets(folder / file)
        stored = offsets[file].get(name)
        size = next(int(e.value) for e in tensor.external_data if e.key == "length")
        if stored is None or stored[1] != size:
            raise BuildError(
                f"{path.name} needs {size} bytes of {name!r}, {file} has "
                f"{stored[1] if stored else 'none'}; this is a fault of trtspec, report it"
            )
        place = {"location": file, "offset": str(stored[0]), "length": str(size)}
        del tensor.external_data[:]
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def _name_ends(exported: Any, graph: Graph) -> None:
    """Name inputs and outputs, including those that the exporter named itself."""
    for value, name in zip(exported.inputs, graph.inputs, strict=True):
        value.name = name
    for value, name in zip(exported.outputs, graph.outputs, strict=True):
        value.name = name


def _offsets(path: Path) -> dict[str, tuple[int, int]]:
    """Offsets and sizes of the tensors in a safetensors file, in bytes."""
    with path.open("rb") as file:
        (header_size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_size))
    begin = 8 + header_size
    return {
        name: (
            begin + entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }


@contextmanager
def _quiet(exporter: logging.Logger) -> Iterator[None]:
    """Silences the exporter's warnings about packages that it could also use."""
    before = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        yield
    finally:
        exporter.setLevel(before)
