"""Real TensorRT-RTX engines, built where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trtspec import LLM
from trtspec.backends.tensorrt.build_engines import REPORT_NAME
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import BuildError, ConfigError, EngineError
from trtspec.speculative.options import parse_speculative_config

from ..e2e.every_method import METHODS
from ..e2e.helpers import TinyModels
from ..e2e.hybrid_drafts import hybrid

onnx = pytest.importorskip("onnx")
pytest.importorskip("tensorrt_rtx")
libraries = pytest.importorskip("tensorrt_rtx_libs")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow

EAGLE3 = {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_speculative_tokens": 3}
DFLASH = {"method": "dflash", "model": "trtspec-tiny-dflash", "num_speculative_tokens": 3}
ADA = {"compute_capability": "8.9"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target, its EAGLE-3 draft and its DFlash draft in float16, for a GPU that is not
    here."""
    config = BuildConfig("float16", max_seq_len=128, backend="tensorrt", backend_options=ADA)
    speculation = parse_speculative_config(hybrid(EAGLE3, DFLASH))
    plan = plan_build("trtspec-tiny", config, speculation)
    built = build_engine(plan, tmp_path_factory.mktemp("trt") / "engine")
    assert build_engine(plan, built) == built, "an equal build is left as it is"
    return built


def layers(report: str, graph: str) -> dict[str, int]:
    """How many layers of each kind a report tells of a graph."""
    part = report[report.index(f"{graph}:") :]
    line = next(line for line in part.splitlines() if "layers" in line)
    return {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", line)}


@pytest.mark.parametrize(
    ("graph", "count"), [("target", 8), ("draft-pass", 1), ("draft_2-pass", 2)]
)
def test_attention_and_cache_are_native(folder: Path, graph: str, count: int) -> None:
    assert (folder / f"{graph}.engine").stat().st_size > 1 << 20
    assert_native(folder, graph, count)


def test_a_context_is_written_without_attention(folder: Path) -> None:
    found = layers((folder / REPORT_NAME).read_text(), "draft_2-context.onnx")
    assert found["KV_CACHE_UPDATE"] == 4 and found["ROTARY_EMBEDDING"] == 2
    assert "ATTENTION_INPUT" not in found


@pytest.mark.matrix
def test_mtp_modules(models: TinyModels, tmp_path: Path) -> None:
    """Each of them is an engine."""
    checkpoint, speculation = METHODS["modules"](models, tmp_path)
    config = BuildConfig("float16", max_seq_len=128, backend="tensorrt", backend_options=ADA)
    plan = plan_build(checkpoint, config, parse_speculative_config(speculation))
    built = build_engine(plan, tmp_path / "engine")
    for depth in range(3):
        assert (built / f"draft-head-{depth}.engine").is_file()
        assert_native(built, f"draft-pass-{depth}", 1)


def assert_native(folder: Path, graph: str, count: int) -> None:
    """A graph's attentions, so many, are fused ones, each over what is in use of caches as they are
    updated."""
    nodes = onnx.load(str(folder / f"{graph}.onnx"), load_external_data=False).graph.node
    updated = {node.output[0] for node in nodes if node.op_type == "TensorScatter"}
    views = {
        node.output[0] for node in nodes if node.op_type == "Slice" and node.input[0] in updated
    }
    assert all(set(node.input[1:3]) <= views for node in nodes if node.op_type == "Attention")
    report = (folder / REPORT_NAME).read_text()
    found = layers(report, f"{graph}.onnx")
    assert found["ATTENTION_INPUT"] == found["ATTENTION_OUTPUT"] == count
    assert found["KV_CACHE_UPDATE"] == found["ROTARY_EMBEDDING"] == 2 * count
    assert not {"SOFTMAX", "SCATTER"} & set(found)
    part = report[report.index(f"{graph}.onnx") :]
    assert f"{count} fused, 0 that TensorRT may take apart (HALF)" in part


def test_paged_attention(tmp_path: Path) -> None:
    """In a process that finds RTX's library by name, as its parser does for plugins."""
    (library,) = Path(libraries.__path__[0]).glob("libtensorrt_rtx.so.*")
    (tmp_path / library.stem).symlink_to(library)
    command = [sys.executable, "-m", "tests.builder.rtx_creators", str(tmp_path / "engine")]
    root = Path(__file__).resolve().parent.parent.parent
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    subprocess.run(command, check=True, cwd=root, env=environment)
    report = (tmp_path / "engine" / REPORT_NAME).read_text()
    # The attentions; a target samples and accepts, too.
    assert layers(report, "target.onnx")["PLUGIN_V3"] == 8 + 2
    assert layers(report, "draft-pass.onnx")["PLUGIN_V3"] == 1
    with pytest.raises(ConfigError, match=r"paged_attention was asked for, .* LD_LIBRARY_PATH, or"):
        options = {**ADA, "paged_attention": True}
        plan_build("trtspec-tiny", BuildConfig(backend="tensorrt", backend_options=options))


def test_it_does_not_run_here(folder: Path) -> None:
    with pytest.raises(EngineError, match=r"was built for cuda \(None, compute capability 8.9\)"):
        LLM(folder)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("option", ["strip_plan", "refit"])
def test_engines_without_weights_need_a_gpu(folder: Path, tmp_path: Path, option: str) -> None:
    options = {**ADA, option: True}
    config = BuildConfig("float16", max_seq_len=128, backend="tensorrt", backend_options=options)
    plan = plan_build("trtspec-tiny", config, parse_speculative_config(EAGLE3))
    words = (
        f"with --{option}: .* only on a machine with a GPU.*leave --{option} out, or build where"
    )
    with pytest.raises(BuildError, match=words):
        build_engine(plan, tmp_path / "engine")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_built_is_refused_before_anything_is_read() -> None:
    for options, words in (
        ({}, "there is no GPU here to build for; say which with --compute_capab"),
        ({"compute_capability": "9.0"}, "does not build for compute capability 9.0"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_build("trtspec-tiny", BuildConfig(backend="tensorrt", backend_options=options))
