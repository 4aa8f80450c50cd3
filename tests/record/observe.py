"""What a method compiles on a backend, as flat entries: contract, weights, graphs."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open

from trtspec import build

from ..e2e.every_method import GEMMA4, LIMITS, METHODS, VARIANTS
from ..e2e.helpers import TinyModels
from . import adapter
from .graph_text import digest, exported_text, onnx_text, summary

Entries = dict[str, Any]
"""A line of the record each: what it is about, and a plain value."""

ALL = {**METHODS, **VARIANTS}
_ELSEWHERE = ("fingerprints", "environment", "weights", "written_by")
"""Parts of a contract that name a machine, versions or checkpoints, and those that the record has
of the weight files themselves."""

_OTHERS = {"qwen3-mtp", "llama-mtp", GEMMA4}
"""Targets that `TinyModels` does not make."""


class Workshop:
    """Tiny checkpoints of every method in a folder, each made once."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        self.models, self.root = models, root
        self.made = cache(self._make)
        self._texts: dict[str, str] = {}

    def _make(self, method: str) -> tuple[Path, Any]:
        root = self.root / method.replace(" ", "-")
        root.mkdir(parents=True, exist_ok=True)
        return ALL[method](self.models, root)

    def folder(self, method: str, backend: str) -> Entries:
        """The contract, the weights and the graphs of an engine folder; without aoti's graphs,
        which are another's text."""
        checkpoint, speculation = self.made(method)
        path = build(checkpoint, speculation, backend=backend, **LIMITS)
        entries = contract_entries(json.loads((path / adapter.CONFIG_NAME).read_text()))
        for file in sorted(path.rglob("*.safetensors")):
            entries[f"weights {file.relative_to(path)}"] = _weights(file)
        for file in sorted(path.rglob("*.onnx")):
            entries[f"graph {file.relative_to(path)}"] = summary(onnx_text(file))
        return entries

    def exported(self, method: str) -> Entries:
        """The contract and the graphs of backend aoti, without compiling."""
        checkpoint, speculation = self.made(method)
        entries = contract_entries(adapter.contract(checkpoint, speculation, "aoti", **LIMITS))
        for name, key, export in adapter.exported_graphs(checkpoint, speculation, **LIMITS):
            if key not in self._texts:
                self._texts[key] = exported_text(export())
            entries[f"graph {name}"] = summary(self._texts[key])
        return entries

    def graph_text(self, method: str, backend: str, name: str) -> str:
        """The normal form of a graph, for reading."""
        checkpoint, speculation = self.made(method)
        if backend == "onnx":
            return onnx_text(build(checkpoint, speculation, backend="onnx", **LIMITS) / name)
        graphs = adapter.exported_graphs(checkpoint, speculation, **LIMITS)
        return next(exported_text(export()) for own, _, export in graphs if own == name)

    def checkpoints(self) -> dict[str, str]:
        """What the targets hold: another version of a library may fill them otherwise."""
        names = sorted({self.made(method)[0].name for method in METHODS} - _OTHERS)
        files = {name: self.models.folder(name) / "model.safetensors" for name in names}
        return {name: digest(file.read_bytes()) for name, file in files.items()}


def versions() -> dict[str, str]:
    """Of what the text of graphs, or the making of checkpoints, depends on."""
    names = ("torch", "transformers", "onnx", "onnxscript")
    return {name: importlib.metadata.version(name).split("+")[0] for name in names}


def contract_entries(config: Mapping[str, Any]) -> Entries:
    """Every value of a config.json by its path, but those that name a machine."""
    kept = {key: value for key, value in config.items() if key not in _ELSEWHERE}
    return {f"contract {path}": value for path, value in _flat(kept, "")}


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        return [e for k in value for e in _flat(value[k], f"{path}.{k}" if path else k)]
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return [e for i, item in enumerate(value) for e in _flat(item, f"{path}[{i}]")]
    return [(path, value)]


def _weights(path: Path) -> str:
    """Names, dtypes and shapes of the tensors; of integers, the values as well."""
    lines = []
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            exact = "" if tensor.is_floating_point() else digest(tensor.numpy().tobytes())
            lines.append(f"{name} {tensor.dtype} {list(tensor.shape)} {exact}")
    return f"{digest(chr(10).join(lines))}, {len(lines)} tensors"


def temporary_workshop() -> tuple[Workshop, tempfile.TemporaryDirectory[str]]:
    """With a folder to be removed after use."""
    scratch = tempfile.TemporaryDirectory(prefix="trtspec-record-")
    root = Path(scratch.name)
    return Workshop(TinyModels(root / "models"), root), scratch
