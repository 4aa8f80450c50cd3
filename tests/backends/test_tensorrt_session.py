"""TensorRTSession over a fake TensorRT (see `fake_tensorrt`): what it runs is what ONNX Runtime
gives for the same graph."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trtspec import build
from trtspec.backends.onnx.session import OnnxSession
from trtspec.backends.tensorrt import cuda_stream, package
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.backends.tensorrt.session import TensorRTSession
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError, EngineError

from ..e2e.helpers import TinyModels
from ..models.tiny_hf import VOCAB

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from ..tiny_config import attention_of
from .fake_tensorrt import (
    CLASSES,
    EngineInvalidityDiagnostics,
    FakeTensorRT,
    as_tensorrt,
    installed,
    write_plan,
)

LIMITS = {"max_batch_size": 4, "max_seq_len": 128, "max_num_tokens": 96}


@pytest.fixture(scope="module")
def built(models: TinyModels) -> Path:
    return build(models.folder("llama"), backend="onnx", dtype="float32", **LIMITS)


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "engine"
    shutil.copytree(built, copy)
    as_tensorrt(copy)
    return copy


@pytest.fixture
def fake() -> Iterator[FakeTensorRT]:
    with installed() as installed_fake:
        yield installed_fake


class Calls:
    """Calls of the target's graph on caches of its own."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        engine = EngineConfig.read(folder, runs_here=False)
        self.length = engine.layout.tokens_per_block
        target, mixer = engine.target, attention_of(engine.target)
        self.num_caches = 2 * target.num_layers
        shape = (LIMITS["max_batch_size"], mixer.num_kv_heads, self.length, mixer.head_dim)
        self.caches = [torch.zeros(shape) for _ in range(self.num_caches)]
        self._random = torch.Generator().manual_seed(seed)

    def make(self, batch: int, rows: int, start: int = 0, first_slot: int = 0) -> list[Tensor]:
        """Inputs of rows behind ``start`` committed ones, on new memory."""
        ids = torch.randint(VOCAB, (batch, rows), generator=self._random)
        own = torch.arange(start, start + rows)
        mask = torch.arange(self.length) <= own[:, None]
        return [
            ids,
            own.repeat(batch, 1),
            torch.full((batch,), start),
            mask.expand(batch, 1, rows, self.length).contiguous(),
            torch.arange(batch * rows),
            *(cache[first_slot : first_slot + batch] for cache in self.caches),
        ]


class Pair:
    """A session, and ONNX Runtime on the same calls."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.calls, self.expected = Calls(folder), Calls(folder)
        graph = folder / "target.onnx"
        self.session = TensorRTSession(graph, self.calls.num_caches, device="cpu", **options)
        self._oracle = OnnxSession(graph, {}, self.calls.num_caches)

    def check(self, *sizes: int) -> None:
        found = self.session.run(self.calls.make(*sizes))
        expected = self._oracle.run(self.expected.make(*sizes))
        assert len(found) == len(expected) == 1
        assert torch.equal(found[0], expected[0])
        for own, other in zip(self.calls.caches, self.expected.caches, strict=True):
            assert torch.equal(own, other)


@pytest.mark.slow
def test_calls_of_both_profiles(folder: Path, fake: FakeTensorRT) -> None:
    """A prompt longer than a step's rows, steps of several requests, and slots behind the first."""
    pair = Pair(folder)
    for sizes in ((1, 90), (4, 5), (2, 1, 5), (2, 3, 7, 1), (1, 64), (4, 64)):
        pair.check(*sizes)
    assert pair.session.num_graphs == fake.cuda.num_launches == 0


@pytest.mark.slow
def test_calls_are_captured_and_replayed(folder: Path, fake: FakeTensorRT) -> None:
    pair = Pair(folder, graph_batches=(2, 4))
    for start in (0, 5, 10):  # other values at other addresses
        pair.check(4, 5, start)
        pair.check(2, 5, start)
    assert pair.session.num_graphs == 2
    assert fake.cuda.num_launches == 6
    executed = fake.num_executed
    pair.check(4, 5, 15)
    assert fake.num_executed == executed, "a replay asks nothing of TensorRT"
    pair.check(2, 5, 15, 2)  # other caches
    pair.check(2, 6, 20)
    assert pair.session.num_graphs == 4
    pair.check(1, 90)
    pair.check(3, 5)
    assert pair.session.num_graphs == 4, "no graphs of prompts, nor of other batches"
    pair.check(4, 5, 20)


def test_the_outputs_of_two_sizes_are_apart(folder: Path, fake: FakeTensorRT) -> None:
    pair = Pair(folder, graph_batches=(2, 4))
    (first,) = pair.session.run(pair.calls.make(2, 3))
    kept = first.clone()
    pair.session.run(pair.calls.make(4, 3))
    pair.session.run(pair.calls.make(1, 80))
    assert torch.equal(first, kept)


def test_what_cannot_be_captured_runs_as_it_is(folder: Path, fake: FakeTensorRT) -> None:
    fake.captures = False
    pair = Pair(folder, graph_batches=(2,))
    for start in (0, 4):
        pair.check(2, 4, start)
    assert pair.session.num_graphs == fake.cuda.num_launches == 0


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((2, 70), r"verify takes input_ids from \[1, 1\] to \[4, 64\], not \[2, 70\]; "),
        ((1, 100), r"prefill takes input_ids from \[1, 1\] to \[1, 96\], not \[1, 100\]; rebuild"),
    ],
)
def test_a_call_that_fits_no_profile(
    folder: Path, fake: FakeTensorRT, sizes: tuple[int, int], words: str
) -> None:
    pair = Pair(folder)
    with pytest.raises(EngineError, match=words):
        pair.session.run(pair.calls.make(*sizes))


def test_compiled_kernels_are_kept(folder: Path, fake: FakeTensorRT) -> None:
    """A second process compiles nothing; another GPU compiles anew."""
    for gpu, compiled in (("one", 2), ("one", 2), ("another", 4), ("another", 4)):
        fake.gpu = gpu
        pair = Pair(folder, graph_batches=(4,))
        pair.check(4, 5)
        pair.check(1, 70)
        assert fake.num_compiled == compiled
    assert [path.name for path in folder.glob("*cache*")] == ["target.runtime_cache"]


def test_a_folder_that_cannot_be_written_to(
    folder: Path, fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    Pair(folder, graph_batches=(4,)).check(4, 5)
    assert not list(folder.glob("*cache*"))


@pytest.mark.parametrize("name", ["input_ids", "k_cache_1", "logits", "v_cache_0_out"])
def test_an_address_that_is_refused(folder: Path, fake: FakeTensorRT, name: str) -> None:
    """What the call would read or write elsewhere is named, and the engine."""
    fake.refused = {name}
    with pytest.raises(EngineError, match=rf"^target.engine: {name} cannot lie at 0x[0-9a-f]+ \("):
        Pair(folder).check(2, 3)
    assert fake.num_executed == 0


@pytest.mark.parametrize("count", [0, 3])
def test_auxiliary_streams_are_its_own(folder: Path, fake: FakeTensorRT, count: int) -> None:
    """The fake refuses a call for which TensorRT would make streams."""
    fake.num_aux_streams = count
    pair = Pair(folder, graph_batches=(2,))
    pair.check(1, 90)
    pair.check(2, 5)
    assert len(fake.cuda.streams) == 1 + count


@pytest.mark.parametrize("option", ["strip_plan", "refit"])
def test_weights_of_the_folder(folder: Path, fake: FakeTensorRT, option: str) -> None:
    options = TensorRTConfig(**{option: True})
    as_tensorrt(folder, options)
    Pair(folder, refits=options.refits_at_load).check(2, 3)
    assert fake.refitted == ["target.onnx"]
    fake.unknown_weights = ["model.lm_head.weight"]
    with pytest.raises(EngineError, match=r"1 weights are missing, first 'model.lm_head.weight'"):
        Pair(folder, refits=True)


def test_an_engine_without_weights_fails(folder: Path, fake: FakeTensorRT) -> None:
    """The words are TensorRT's."""
    as_tensorrt(folder, TensorRTConfig(strip_plan=True))
    with pytest.raises(EngineError, match=r"a call failed \(.*the engine has no weights"):
        Pair(folder).check(2, 3)
    assert fake.refitted == []


def test_files_that_do_not_load(folder: Path, fake: FakeTensorRT) -> None:
    graph = folder / "target.onnx"
    engine = EngineConfig.read(folder)
    cases = (
        ({"version": "9.9"}, r"does not run here on tensorrt_rtx 1.7.0 \(VERSION_MISMATCH\)"),
        ({"broken": True}, r"does not take .*target.engine \(no kernel image for this device\)"),
    )
    for changes, words in cases:
        write_plan(engine, graph, **changes)
        with pytest.raises(EngineError, match=words):
            Pair(folder)
    graph.with_suffix(".engine").write_text("nothing")
    with pytest.raises(EngineError, match=r"\(MALFORMED_ENGINE\)"):
        Pair(folder)
    graph.with_suffix(".engine").unlink()
    with pytest.raises(EngineError, match=r"target.engine cannot be read .*; rebuild the engine"):
        Pair(folder)


def test_missing_packages(
    folder: Path, fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named when the folder is read, before anything is loaded."""
    with monkeypatch.context() as patch:
        patch.setattr(cuda_stream, "cudart", None)
        with pytest.raises(ConfigError, match=r"needs cuda-python, .* pip install trtspec\[cuda\]"):
            EngineConfig.read(folder)
    with monkeypatch.context() as patch:
        patch.setattr(package, "trt", None)
        with pytest.raises(ConfigError, match=r"pip install trtspec\[tensorrt-rtx\]"):
            EngineConfig.read(folder)
    EngineConfig.read(folder)


def test_another_tensorrt(
    folder: Path, fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeTensorRT, "__version__", "2.0")
    words = r"compiled for tensorrt tensorrt_rtx 1.7.0 \(here tensorrt_rtx 2.0\); rebuild"
    with pytest.raises(EngineError, match=words):
        EngineConfig.read(folder)


def test_the_real_package_has_what_the_fake_has() -> None:
    real = pytest.importorskip("tensorrt_rtx")
    for fake_class in CLASSES:
        own = {name for name in vars(fake_class) if not name.startswith("_")}
        missing = own - set(dir(getattr(real, fake_class.__name__)))
        assert not missing, f"{fake_class.__name__} has no {missing}"
    for name in vars(FakeTensorRT):
        if name not in ("__init__", "__module__", "__doc__", "__dict__", "__weakref__"):
            assert hasattr(real, name), name
    for kind in ("ExecutionContextAllocationStrategy", "TensorIOMode"):
        for member in vars(getattr(FakeTensorRT, kind)):
            assert hasattr(getattr(real, kind), member), f"{kind}.{member}"
    for diagnosis in EngineInvalidityDiagnostics:
        assert int(real.EngineInvalidityDiagnostics.__members__[diagnosis.name]) == diagnosis
