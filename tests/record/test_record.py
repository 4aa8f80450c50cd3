"""Nothing has moved: what every method compiles is what the record says. See README.md here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trtspec.speculative.registry import methods

from ..e2e.every_method import NOT_ON_ONNX, SELDOM_ON_ONNX
from ..e2e.helpers import TinyModels
from . import store
from .compare import entries_moved, messages_moved
from .messages import EVERY_METHOD, messages
from .observe import ALL, METHODS, VARIANTS, Workshop, versions

_ON_ONNX = [
    pytest.param(n, marks=pytest.mark.matrix if n in (*VARIANTS, *SELDOM_ON_ONNX) else ())
    for n in ALL
    if n not in NOT_ON_ONNX
]
_TABLE = [*METHODS, *(pytest.param(name, marks=pytest.mark.matrix) for name in VARIANTS)]


@pytest.fixture(scope="module")
def record() -> store.Record:
    return store.read()


@pytest.fixture(scope="module")
def shop(
    models: TinyModels, tmp_path_factory: pytest.TempPathFactory, record: store.Record
) -> Iterator[Workshop]:
    shop = Workshop(models, tmp_path_factory.mktemp("record"))
    moved = entries_moved("checkpoints", dict(record.checkpoints), dict(shop.checkpoints()))
    if moved and record.versions["transformers"] != versions()["transformers"]:
        pytest.skip(f"recorded with {record.versions}, here {versions()} make other checkpoints")
    assert not moved, "\n".join(moved)
    return shop


def same_versions(record: store.Record, *names: str) -> None:
    """Skip where graphs are of other versions of what writes them."""
    here = versions()
    other = [
        f"{n} {record.versions[n]} (here {here[n]})" for n in names if record.versions[n] != here[n]
    ]
    if other:
        pytest.skip(f"graphs were recorded with {', '.join(other)}")


def check(where: str, recorded: store.Entries, seen: store.Entries) -> None:
    moved = entries_moved(where, recorded, seen)
    assert not moved, "\n".join(["the record says otherwise:", *moved])


def without_graphs(entries: store.Entries) -> store.Entries:
    return {key: value for key, value in entries.items() if not key.startswith("graph ")}


def test_all_are_recorded(record: store.Record) -> None:
    assert set(record.methods) == set(ALL)
    for method, backends in record.methods.items():
        slots = () if method in NOT_ON_ONNX else ("onnx",)
        assert set(backends) == {"eager", *slots, "aoti"}


@pytest.mark.parametrize("method", ALL)
def test_eager(shop: Workshop, record: store.Record, method: str) -> None:
    check(f"{method} / eager", record.methods[method]["eager"], shop.folder(method, "eager"))


@pytest.mark.slow
@pytest.mark.parametrize("method", _ON_ONNX)
def test_onnx(shop: Workshop, record: store.Record, method: str) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    recorded, seen = record.methods[method]["onnx"], shop.folder(method, "onnx")
    check(f"{method} / onnx", without_graphs(recorded), without_graphs(seen))
    same_versions(record, "torch", "onnx", "onnxscript")
    check(f"{method} / onnx", recorded, seen)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("method", _TABLE)
def test_exported(shop: Workshop, record: store.Record, method: str) -> None:
    """What backend aoti would compile, and the contract of its engine folder."""
    same_versions(record, "torch")
    check(f"{method} / aoti", record.methods[method]["aoti"], shop.exported(method))


def test_messages_of_every_method() -> None:
    assert set(EVERY_METHOD) == set(methods())


def test_messages(shop: Workshop, record: store.Record) -> None:
    moved = messages_moved(record.messages, messages(shop))
    assert not moved, "\n".join(["the record says otherwise:", *moved])
