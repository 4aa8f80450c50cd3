"""CudaKernels launches what the C++ launchers launch: the launchers are compiled with a stand-in
that prints launches, and asked the same."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trtspec.errors import ConfigError
from trtspec.ops import cuda_launch
from trtspec.ops.cuda_driver import Compiled, Grid
from trtspec.ops.cuda_launch import CudaKernels
from trtspec.ops.cuda_params import (
    AcceptParams,
    KeptTreeParams,
    LogitsMaskParams,
    MarginalTreesParams,
    MaskElement,
    Parameters,
    SampleParams,
    Source,
    TreeBeamParams,
    TreeChildrenParams,
    TreeMaskParams,
    TreePoolParams,
)
from trtspec.ops.cuda_sampling import candidates_workspace, sample_workspace
from trtspec.ops.cuda_trees import marginal_trees_workspace

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STREAM = 77


class Launch(NamedTuple):
    grid: Grid
    threads: int
    shared_bytes: int
    stream: int
    arguments: list[bytes]


class FakeDevice:
    """Remembers launches; a kernel is its own name."""

    architecture = 90

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.kernels: list[str] = []
        self.masks: list[list[bytes]] = []  # of each argument: 0 for its padding

    def load(self, compiled: Compiled) -> dict[str, Any]:
        return dict(compiled.names)

    def launch(
        self,
        kernel: str,
        grid: Grid,
        threads: int,
        shared_bytes: int,
        stream: int,
        arguments: Sequence[Any],
    ) -> None:
        self.kernels.append(kernel)
        self.masks.append([_mask(argument) for argument in arguments])
        held = [bytes(argument) for argument in arguments]
        self.launches.append(Launch(grid, threads, shared_bytes, stream, held))


def _mask(argument: Any) -> bytes:
    if not isinstance(argument, ctypes.Structure):
        return b"\xff" * ctypes.sizeof(argument)
    mask = bytearray(ctypes.sizeof(argument))
    for name, *_ in argument._fields_:
        field = getattr(type(argument), name)
        mask[field.offset : field.offset + field.size] = b"\xff" * field.size
    return bytes(mask)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    compiled: list[str] = []

    def compile_kernels(source: Source, architecture: int) -> Compiled:
        assert source.name not in compiled, "a source is compiled once"
        assert architecture == FakeDevice.architecture
        compiled.append(source.name)
        names = {f"trtspec::cuda::{kernel}": kernel for kernel in source.kernels}
        return Compiled(b"", names)

    monkeypatch.setattr(cuda_launch, "compile_kernels", compile_kernels)
    return FakeDevice()


@pytest.fixture
def kernels(device: FakeDevice) -> CudaKernels:
    return CudaKernels(device)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler to compile the launchers with")
    folder = tmp_path_factory.mktemp("recorder")
    plugins = ROOT / "plugins"
    sources = []
    for name in cuda_launch.SOURCES:
        # Copied away from kernels/launch.hpp, which would be found first.
        copy = folder / f"{Path(name).stem}.cpp"
        copy.write_text((plugins / "kernels" / name).read_text())
        sources.append(copy)
    includes = (
        HERE / "recorder",
        plugins / "emulation",
        plugins,
        plugins / "kernels",
        ROOT / "cpp/include",
        ROOT / "cpp/ops",
    )
    program = folder / "record"
    subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-pthread",
            *(f"-I{include}" for include in includes),
            *map(str, sources),
            str(HERE / "recorder/record.cpp"),
            *map(str, (plugins / "emulation").glob("*.cpp")),
            "-o",
            str(program),
        ],
        check=True,
    )
    return program


def recorded(recorder: Path, *call: object) -> Iterator[str]:
    text = " ".join(map(str, call))
    out = subprocess.run([recorder], input=text, capture_output=True, text=True, check=True).stdout
    *lines, last = out.splitlines()
    assert last == "."
    return iter(lines)


def compare(device: FakeDevice, lines: Iterator[str]) -> None:
    """The device's launches are those that C++ printed, but for the padding of structures."""
    expected = []
    for line in lines:
        x, y, z, threads, shared, stream, *arguments = line.split()
        launch = Launch(
            (int(x), int(y), int(z)),
            int(threads),
            int(shared),
            int(stream),
            [bytes.fromhex(argument) for argument in arguments],
        )
        expected.append(launch)
    assert len(device.launches) == len(expected) > 0
    for mine, masks, theirs in zip(device.launches, device.masks, expected, strict=True):
        assert mine[:4] == theirs[:4]
        assert len(mine.arguments) == len(theirs.arguments)
        for a, b, mask in zip(mine.arguments, theirs.arguments, masks, strict=True):
            assert len(a) == len(b)
            kept = [(x & m, y & m) for x, y, m in zip(a, b, mask, strict=True)]
            assert all(x == y for x, y in kept)


def fields_of(params: ctypes.Structure) -> list[int]:
    return [getattr(params, name) or 0 for name, *_ in params._fields_]


@pytest.mark.parametrize("requests", [1, 4, 5, 1000])
def test_accept(device: FakeDevice, kernels: CudaKernels, recorder: Path, requests: int) -> None:
    values = {name: 1000 + i for i, (name, _) in enumerate(AcceptParams._fields_)}
    params = AcceptParams(**(values | {"requests": requests, "width": 9}))
    kernels.accept(params, STREAM)
    compare(device, recorded(recorder, "accept", *fields_of(params)))


@pytest.mark.parametrize("kind", MaskElement)
def test_tree_mask(
    device: FakeDevice, kernels: CudaKernels, recorder: Path, kind: MaskElement
) -> None:
    values = {name: 1000 + i for i, (name, _) in enumerate(TreeMaskParams._fields_)}
    sizes = {"kind": kind, "requests": 3, "width": 5, "length": 700, "sliding_window": 64}
    params = TreeMaskParams(**(values | sizes))
    kernels.tree_mask(params, STREAM)
    compare(device, recorded(recorder, "tree_mask", *fields_of(params)))
    assert "unsigned" in device.kernels[0]


@pytest.mark.parametrize("seed", range(12))
def test_kv_compact(device: FakeDevice, kernels: CudaKernels, recorder: Path, seed: int) -> None:
    rng = random.Random(seed)
    row_bytes = rng.choice([16, 64, 1024, 2048, 12, 250, 1000, 1, 8192])
    pairs = rng.choice([1, 7, 60, 200, 1000, 6144])
    caches = [4096 * (i + 1) + rng.choice([0, 0, 0, 8]) for i in range(rng.choice([1, 64, 300]))]
    kernels.kv_compact(caches, row_bytes, 4096, 8192, pairs, STREAM)
    call = ("kv_compact", len(caches), *caches, row_bytes, 4096, 8192, pairs)
    compare(device, recorded(recorder, *call))


def test_unaligned_caches_move_by_bytes(device: FakeDevice, kernels: CudaKernels) -> None:
    kernels.kv_compact([4096], 64, 4096, 8192, 3, STREAM)
    kernels.kv_compact([4096 + 8], 64, 4096, 8192, 3, STREAM)
    assert device.kernels == ["move_rows<uint4>", "move_rows<unsigned char>"]


@pytest.mark.parametrize(
    ("rows", "vocab", "allowed", "biases"),
    [(1, 1, 4096, 1), (3, 256, 4096, 256), (64, 151936, 4096, 0), (7, 32000, 0, 257)],
)
def test_mask_logits(
    device: FakeDevice,
    kernels: CudaKernels,
    recorder: Path,
    rows: int,
    vocab: int,
    allowed: int,
    biases: int,
) -> None:
    values = {name: 1000 + i for i, (name, _) in enumerate(LogitsMaskParams._fields_)}
    params = LogitsMaskParams(**(values | {"allowed": allowed, "num_biases": biases}))
    kernels.mask_logits(8192, rows, vocab, params, STREAM)
    compare(device, recorded(recorder, "mask_logits", 8192, rows, vocab, *fields_of(params)))
    assert device.kernels == ["add_biases"] * bool(biases) + ["forbid"] * bool(allowed)


@pytest.mark.parametrize(
    ("rows", "vocab", "logits"),
    [(1, 1, 4096), (3, 2048, 4096), (5, 2049, 4096), (64, 151936, 4096), (7, 32000, 4100)],
)
def test_sample(
    device: FakeDevice, kernels: CudaKernels, recorder: Path, rows: int, vocab: int, logits: int
) -> None:
    columns = SampleParams(
        **{name: 1000 + i for i, (name, _) in enumerate(SampleParams._fields_)},
    )
    kernels.sample(logits, rows, vocab, columns, 5000, 1 << 20, STREAM)
    call = ("sample", logits, rows, vocab, *fields_of(columns), 5000, 1 << 20)
    lines = recorded(recorder, *call)
    assert sample_workspace(rows, vocab) <= int(next(lines))
    compare(device, lines)
    # The parts of the workspace lie one behind the other, and the last one ends with it.
    *_, pick = device.launches
    found = int.from_bytes(pick.arguments[0], "little") - (1 << 20)
    chunks = -(-vocab // 2048)
    assert found + 16 * rows * chunks <= sample_workspace(rows, vocab)


@pytest.mark.parametrize(
    ("rows", "vocab", "k", "token_map"),
    [(1, 1, 1, None), (3, 2048, 4, 9000), (5, 2049, 10, None), (64, 151936, 1024, 9000)],
)
def test_draft_candidates(
    device: FakeDevice,
    kernels: CudaKernels,
    recorder: Path,
    rows: int,
    vocab: int,
    k: int,
    token_map: int | None,
) -> None:
    columns = SampleParams(
        **{name: 1000 + i for i, (name, _) in enumerate(SampleParams._fields_)},
    )
    rest = (k, 5000, 6000, 1 << 20)
    kernels.draft_candidates(4096, rows, vocab, columns, token_map, *rest, STREAM)
    call = (4096, rows, vocab, *fields_of(columns), token_map or 0, *rest)
    lines = recorded(recorder, "draft_candidates", *call)
    workspace = candidates_workspace(rows, vocab, k)
    assert workspace <= int(next(lines))
    compare(device, lines)
    *_, merge = device.launches
    sums = int.from_bytes(merge.arguments[2], "little") - (1 << 20)
    assert sums + 8 * rows * -(-vocab // 2048) <= workspace


def numbered(kind: type[Parameters], **values: int) -> Any:
    """Parameters with different values."""
    return kind(**({name: 1000 + i for i, (name, _) in enumerate(kind._fields_)} | values))


@pytest.mark.parametrize("chosen", [0, 9000])
@pytest.mark.parametrize(("requests", "lanes", "branching"), [(1, 1, 4), (7, 10, 10), (3, 64, 200)])
def test_growth(
    device: FakeDevice,
    kernels: CudaKernels,
    recorder: Path,
    requests: int,
    lanes: int,
    branching: int,
    chosen: int,
) -> None:
    pool = numbered(TreePoolParams, requests=requests, size=2 * lanes * branching)
    children = numbered(TreeChildrenParams, lanes=lanes, branching=branching)
    beam, tree = (numbered(kind, chosen=chosen) for kind in (TreeBeamParams, KeptTreeParams))
    tree.nodes = 37
    given = [*fields_of(pool), *fields_of(children)]
    kernels.expand_tree(pool, children, beam, STREAM)
    compare(device, recorded(recorder, "expand_tree", *given, *fields_of(beam)))
    device.launches.clear(), device.masks.clear()
    kernels.keep_best(pool, children, tree, STREAM)
    compare(device, recorded(recorder, "keep_best", *given, *fields_of(tree)))


@pytest.mark.parametrize("candidates", [9, 8192, 8193])
@pytest.mark.parametrize("keep_all", [False, True])
def test_marginal_trees(
    device: FakeDevice, kernels: CudaKernels, recorder: Path, candidates: int, keep_all: bool
) -> None:
    params = numbered(MarginalTreesParams, requests=5, keep_all=keep_all, nodes=31)
    kernels.marginal_trees(params, candidates, 4096, STREAM)
    fields = map(int, fields_of(params))
    lines = recorded(recorder, "marginal_trees", *fields, candidates, 4096)
    assert marginal_trees_workspace(5, candidates) == int(next(lines))
    compare(device, lines)


def test_empty_calls_launch_nothing(device: FakeDevice, kernels: CudaKernels) -> None:
    kernels.accept(AcceptParams(), STREAM)
    kernels.tree_mask(TreeMaskParams(requests=3, width=0, length=9), STREAM)
    kernels.kv_compact([4096], 64, 0, 0, 0, STREAM)
    kernels.sample(4096, 0, 100, SampleParams(), 0, 0, STREAM)
    kernels.mask_logits(4096, 0, 100, LogitsMaskParams(allowed=8, num_biases=3), STREAM)
    kernels.mask_logits(4096, 3, 100, LogitsMaskParams(), STREAM)
    kernels.expand_tree(TreePoolParams(), TreeChildrenParams(), TreeBeamParams(), STREAM)
    kernels.draft_candidates(4096, 0, 100, SampleParams(), None, 4, 0, 0, 0, STREAM)
    assert device.launches == []


def test_refusals(device: FakeDevice, kernels: CudaKernels) -> None:
    with pytest.raises(ConfigError, match="AcceptParams has no hight, wide; it has sampled"):
        AcceptParams(wide=3, hight=4)
    with pytest.raises(ConfigError, match="at most 6144 rows, got 6145"):
        kernels.kv_compact([4096], 64, 0, 0, 6145, STREAM)
    with pytest.raises(ConfigError, match="got 4194304"):
        kernels.sample(4096, 1, 1 << 22, SampleParams(), 0, 0, STREAM)
    with pytest.raises(ConfigError, match="k must be 1 to 1024 on CUDA, got 1025"):
        kernels.draft_candidates(4096, 1, 9, SampleParams(), None, 1025, 0, 0, 0, STREAM)
    with pytest.raises(ValueError, match="4"):
        kernels.tree_mask(TreeMaskParams(kind=4, requests=1, width=1, length=1), STREAM)
    assert device.launches == []
