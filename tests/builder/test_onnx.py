"""What backend onnx refuses, and how a graph finds its weights."""

from __future__ import annotations

import sys

import pytest

import trtspec.backends.onnx.export as exporter
import trtspec.backends.tensorrt.package as package
from trtspec.builder.locate import cache_root
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import BuildError, ConfigError, EngineError

from ..e2e.helpers import TinyModels, open_llm

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_bfloat16_is_refused_and_never_chosen() -> None:
    with pytest.raises(ConfigError, match="'bfloat16' is not available on backend 'onnx'"):
        plan_build("trtspec-tiny", BuildConfig("bfloat16", backend="onnx"))
    plan = plan_build("trtspec-tiny", BuildConfig(backend="onnx", device="auto"))
    assert plan.engine.build.dtype == "float32" and plan.engine.build.device == "cpu"
    assert any("no bfloat16 kernels" in reason for reason in plan.reasons)


def test_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend 'onnx' runs on the CPU"):
        plan_build("trtspec-tiny", BuildConfig(backend="onnx", device="cuda"))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "trt", None)
    with pytest.raises(ConfigError, match=r"pip install trtspec\[tensorrt-rtx\]"):
        plan_build("trtspec-tiny", BuildConfig(backend="tensorrt"))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install trtspec\[onnx\]"):
        plan_build("trtspec-tiny", BuildConfig(backend="onnx"))
    monkeypatch.setattr(exporter, "onnx", None)
    with pytest.raises(BuildError, match=r"pip install trtspec\[onnx\]"):
        plan_build("trtspec-tiny", BuildConfig(backend="onnx"))


def test_weights_lie_in_the_engine_folder(models: TinyModels) -> None:
    """Any ONNX tool finds them; a damaged graph and a cache below one slot are refused."""
    with open_llm(models.folder("llama"), backend="onnx") as llm:
        folder = cache_root() / "engines" / llm.config.fingerprints["engine"]
    loaded = onnx.load(str(folder / "target.onnx"))
    onnx.checker.check_model(str(folder / "target.onnx"))
    assert (folder / "target.onnx").stat().st_size < 1 << 19
    names = {tensor.name for tensor in loaded.graph.initializer}
    assert "model.layers.1.mlp.down.weight" in names
    with pytest.raises(EngineError, match="less than one slot of 256"):
        open_llm(folder, backend="onnx", kv_cache_config={"max_tokens": 40})
    (folder / "target.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match=r"target.onnx cannot be loaded"):
        open_llm(folder, backend="onnx")
