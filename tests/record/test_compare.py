"""The referee names whatever moved, by method and backend, and nothing else."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from . import store
from .compare import messages_moved, methods_moved
from .graph_text import exported_text, onnx_text, summary

METHODS: store.Methods = {
    "eagle3": {
        backend: {
            "contract build.backend": backend,
            "contract build.limit": None,
            "contract target.kind": "llama",
            "graph draft/rollout.pt2": "aaaa, 10 lines",
        }
        for backend in ("eager", "onnx")
    },
    "suffix": {"eager": {"contract target.kind": "llama"}},
}
MESSAGES = {"options": {"no requests": "ConfigError: 0", "tpu": "ConfigError: tpu"}}


def _set(*path: object, value: object) -> Callable[[store.Methods], None]:
    def change(methods: store.Methods) -> None:
        at: object = methods
        for key in path[:-1]:
            at = at[key]  # type: ignore[index]
        at[path[-1]] = value  # type: ignore[index]

    return change


CHANGES: dict[str, tuple[Callable[[store.Methods], object], str]] = {
    "a graph": (
        _set("eagle3", "onnx", "graph draft/rollout.pt2", value="bbbb, 11 lines"),
        "eagle3 / onnx: graph draft/rollout.pt2: 'aaaa, 10 lines' != 'bbbb, 11 lines'",
    ),
    "a contract": (
        _set("eagle3", "onnx", "contract build.backend", value="tensorrt"),
        "eagle3 / onnx: contract build.backend: 'onnx' != 'tensorrt'",
    ),
    "a new entry": (
        _set("eagle3", "onnx", "contract build.new", value=1),
        "eagle3 / onnx: contract build.new is new: 1",
    ),
    "a missing entry": (
        lambda methods: methods["eagle3"]["onnx"].pop("contract build.backend"),
        "eagle3 / onnx: contract build.backend is gone (it was 'onnx')",
    ),
    "a missing method": (
        lambda methods: methods.pop("suffix"),
        "suffix: is in the record, but was not seen",
    ),
    "a new method": (_set("new", value={"eager": {}}), "new: is not in the record"),
    "a missing backend": (
        lambda methods: methods["eagle3"].pop("onnx"),
        "eagle3 / onnx: is in the record, but was not seen",
    ),
    "a new backend": (
        _set("suffix", "onnx", value={}),
        "suffix / onnx: is not in the record",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(name: str) -> None:
    change, line = CHANGES[name]
    seen = copy.deepcopy(METHODS)
    change(seen)
    assert methods_moved(METHODS, seen) == [line]


def test_nothing_moved() -> None:
    assert methods_moved(METHODS, copy.deepcopy(METHODS)) == []
    assert messages_moved(MESSAGES, copy.deepcopy(MESSAGES)) == []


def test_messages_are_named() -> None:
    seen = {"options": {"no requests": "ConfigError: none", "vpu": "new"}}
    assert messages_moved(MESSAGES, seen) == [
        "message of options / no requests:\n    was ConfigError: 0\n    now ConfigError: none",
        "message of options / tpu: is in the record, but was not seen",
        "message of options / vpu: is not in the record: new",
    ]
    assert messages_moved(MESSAGES, {}) == [
        f"message of options / {case}: is in the record, but was not seen"
        for case in ("no requests", "tpu")
    ]


def test_the_files_keep_a_record(tmp_path: Path) -> None:
    """Written and read it is the same; only what moved is written again, an entry a line."""
    record = store.Record({"torch": "1"}, {"llama": "f"}, METHODS, MESSAGES)
    assert len(store.write(record, tmp_path)) == 5
    assert store.read(tmp_path) == record
    assert store.write(record, tmp_path) == []
    text = (tmp_path / "methods" / "eagle3.json").read_text()
    assert text.count('"graph draft/rollout.pt2"') == 1, "what is common is written once"
    assert '"contract target.": "target of eagle3"' in text
    assert max(map(len, text.splitlines())) < 100
    moved = copy.deepcopy(METHODS)
    moved["eagle3"]["onnx"]["graph draft/rollout.pt2"] = "bbbb, 11 lines"
    record.methods = moved
    assert store.write(record, tmp_path) == ["methods/eagle3.json"]
    assert store.read(tmp_path).methods == moved
    del moved["suffix"]
    assert store.write(record, tmp_path) == ["methods/suffix.json"]


class Small(torch.nn.Module):
    def __init__(self, scale: float = 2.0, size: int = 4, index: int = 1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))
        self.scale, self.index = scale, torch.tensor([index, 0])

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows * self.weight)[:, self.index] * self.scale


class Renamed(Small):
    """The same by other names and lines."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product = rows * self.weight
        chosen = product[:, self.index]
        return chosen * self.scale


def exported(module: Small, size: int = 4) -> str:
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    program = torch.export.export(module, (torch.zeros(3, size),), dynamic_shapes=(rows,))
    return exported_text(program)


def test_the_normal_form_of_an_exported_graph() -> None:
    """It depends on what is computed, constants of integers included, not on values of weights."""
    base = exported(Small())
    assert base == exported(Small()) == exported(Renamed())
    with torch.no_grad():
        loaded = Small()
        loaded.weight.fill_(5)
    assert base == exported(loaded)
    others = [exported(Small(3.0)), exported(Small(size=5), 5), exported(Small(index=2))]
    assert len({summary(text) for text in (base, *others)}) == 4
    assert not re.search(r"\bs\d+\b|/tmp|\.py", base)


def test_the_normal_form_of_an_onnx_graph(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper

    def text(prefix: str, operator: str = "Add", constant: int = 3) -> str:
        ends = [helper.make_tensor_value_info(n, 1, ["rows"]) for n in ("given", "made")]
        nodes = [
            helper.make_node(operator, ["given", f"{prefix}_c"], [f"{prefix}_1"], prefix),
            helper.make_node("Neg", [f"{prefix}_1"], ["made"], doc_string=prefix),
        ]
        value = helper.make_tensor(f"{prefix}_c", 1, [1], [float(constant)])
        graph = helper.make_graph(nodes, prefix, ends[:1], ends[1:], [value])
        path = tmp_path / f"{prefix}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)]), str(path))
        return onnx_text(path)

    assert text("a") == text("b")
    assert len({text("a"), text("a", "Mul"), text("a", constant=4)}) == 3


def test_the_files_are_small_and_plain() -> None:
    files = [path for path in store.DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 280_000
    for path in files:
        text = path.read_text()
        assert json.loads(text) and not re.search(r"/tmp|/home|/opt|AVX|EPYC|Xeon", text), path
