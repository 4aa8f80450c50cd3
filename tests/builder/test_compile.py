"""What the compiler makes of this project's ops, and of rotations."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from trtspec.backends.aoti.compile import compile_graph
from trtspec.backends.aoti.session import AotiSession
from trtspec.backends.inputs import EngineInputs
from trtspec.backends.shape import Graph
from trtspec.config.rope import RopeConfig
from trtspec.models.rope import RotaryEmbedding, rotate
from trtspec.models.signature import Signature
from trtspec.ops.linear import linear, pack_linear
from trtspec.ops.linear_quantised import (
    QuantisedWeights,
    linear_quantised,
    pack_groups,
    pack_values,
)
from trtspec.ops.lora import lora

pytestmark = pytest.mark.slow

SIZE, HEAD, SHORT, RANK = 64, 32, 4, 3


class Network(nn.Module):
    """Two products, each with a rotation behind it, an adapter beside one of them, and factors of
    the parts of a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rotary = RotaryEmbedding(RopeConfig(), HEAD)
        self.register_buffer("first", pack_linear(torch.randn(SIZE, SIZE)))
        values = torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8)
        self.register_buffer("second", pack_values(values, 8))
        self.register_buffer("scales", pack_groups(torch.rand(SIZE, 1)))
        self.register_buffer("factors", torch.rand(SHORT))
        self.register_buffer("a", torch.randn(2, SIZE, 2 * RANK))
        self.register_buffer("b", torch.randn(2, RANK, SIZE))

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor]:
        turns = self.rotary(positions)
        index = (positions % 3 - 1).int()
        y = linear(x, self.first, None, SIZE, residual=x)
        y = lora(x, self.a, self.b, index, (SIZE - 8, 8), residual=y)
        y = rotate(y.view(-1, SIZE // HEAD, HEAD), turns).flatten(1)
        weights = QuantisedWeights(self.second, self.scales)
        y = linear_quantised(y, weights, None, SIZE, 8, 0, input_bits=0)
        y = (y.view(-1, SHORT, SIZE // SHORT) * self.factors[:, None]).flatten(1)
        return (rotate(y.view(-1, SIZE // HEAD, HEAD), turns),)


def given(x: Tensor, positions: Tensor) -> EngineInputs:
    return EngineInputs(hidden_in=x, caches=(positions,))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AotiSession]:
    rows = Dim("rows", min=1, max=1024)
    signature = Signature(
        (torch.randn(5, SIZE), torch.arange(5)),
        ({0: rows}, {0: rows}),
    )
    package = tmp_path_factory.mktemp("compile") / "network.pt2"
    network = Network()
    weights = {name: weight.clone() for name, weight in network.state_dict().items()}
    for weight in network.state_dict().values():
        weight.zero_()  # a graph is compiled for shapes, whatever the weights
    graph = Graph("network", "target", package.name, lambda: network, lambda: signature)
    compile_graph(graph, package, "cpu")
    return package, AotiSession(package, weights)


def test_it_says_what_the_module_says(compiled: tuple[Path, AotiSession]) -> None:
    _, session = compiled
    for rows in (1, 3, 40):
        x, positions = torch.randn(rows, SIZE), torch.arange(100, 100 + rows)
        (expected,) = Network()(x, positions)
        (got,) = session.run(given(x, positions))
        # The compiler's cosines differ in the last bit, and so does what is rounded behind them.
        torch.testing.assert_close(
            got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
        )


def test_other_threads_run_during_a_call(compiled: tuple[Path, AotiSession]) -> None:
    """A thread that asks for the interpreter is given it by nobody else."""
    _, session = compiled
    inputs = given(torch.randn(1000, SIZE), torch.arange(1000))
    asked, ran = threading.Event(), threading.Event()

    def other() -> None:
        asked.wait()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e3)
    try:
        asked.set()
        assert not ran.is_set()
        for _ in range(1000):
            session.run(inputs)
            if ran.is_set():
                break
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        asked.set()
        thread.join()


def test_ops_are_called_directly_and_turns_are_computed_once(
    compiled: tuple[Path, AotiSession],
) -> None:
    package, _ = compiled
    with zipfile.ZipFile(package) as archive:
        sources = [archive.read(n).decode() for n in archive.namelist() if n.endswith(".cpp")]
    program = "".join(sources)
    assert "CHECK(aoti_torch_cpu_linear(" in program
    assert "CHECK(aoti_torch_cpu_linear_quantised(" in program
    assert "CHECK(aoti_torch_cpu_lora(" in program
    assert "aoti_torch_proxy_executor_call_function(" not in program
    kernels = [part for part in program.split('extern "C"') if ".cos()" in part]
    assert len(kernels) == 1


def test_an_op_that_fails_says_why(
    compiled: tuple[Path, AotiSession], capfd: pytest.CaptureFixture[str]
) -> None:
    _, session = compiled
    with pytest.raises(RuntimeError) as failure:
        session.run(given(torch.randn(3, SIZE + 1), torch.arange(3)))
    assert "linear: x must have shape" in str(failure.value) + capfd.readouterr().err
    (again,) = session.run(given(torch.randn(3, SIZE), torch.arange(3)))
    assert again.isfinite().all()


def test_weights_go_with_the_last_session(compiled: tuple[Path, AotiSession]) -> None:
    package, _ = compiled
    weights = dict(Network().state_dict())
    seen = [weakref.ref(weight.untyped_storage()) for weight in weights.values()]
    first, second = AotiSession(package, weights), AotiSession(package, weights)
    del weights, first
    gc.collect()
    x, positions = torch.randn(3, SIZE), torch.arange(3)
    (got,) = second.run(given(x, positions))
    torch.testing.assert_close(got, Network()(x, positions)[0], rtol=1e-4, atol=1e-3)
    del second
    gc.collect()
    assert not any(storage() for storage in seen)
