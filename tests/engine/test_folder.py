"""Engine folders: what is checked before a byte of weights is read, and that they can move."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import trtspec.backends.base as base
import trtspec.backends.environment as environments
import trtspec.backends.tensorrt.backend as tensorrt
from trtspec import LLM
from trtspec.backends.environment import Environment, cpu_instructions
from trtspec.backends.registry import backend_named
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig, is_engine_folder
from trtspec.errors import ConfigError, EngineError
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import PARAMS_40, TinyModels, chain, random_prompt

PROMPT = random_prompt(90, 20)


@pytest.fixture(scope="module")
def built(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    speculation = parse_speculative_config(chain(models.draft("llama"), 3))
    plan = plan_build(models.folder("llama"), BuildConfig(backend="eager"), speculation)
    return build_engine(plan, tmp_path_factory.mktemp("built") / "engine")


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(built, tmp_path / "engine"))


def open_folder(folder: Path) -> LLM:
    return LLM(folder, skip_tokenizer_init=True)


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / "config.json").read_text())
    change(data)
    (folder / "config.json").write_text(json.dumps(data))


def test_moved_elsewhere(models: TinyModels, folder: Path, tmp_path: Path) -> None:
    """Nothing in it says where it was built, nor where its checkpoints are."""
    moved = folder.rename(tmp_path / "moved")
    text = "".join(p.read_text() for p in moved.rglob("*.json"))
    assert str(models.root) not in text and str(tmp_path) not in text
    with open_folder(moved) as llm:
        output = llm.generate(PROMPT, PARAMS_40)
        assert output.outputs[0].token_ids == models.greedy("llama", PROMPT)
        assert output.metrics.num_accepted_tokens > 0


def test_round_trip(built: Path, tmp_path: Path) -> None:
    config = EngineConfig.read(built)
    config.write(tmp_path)
    assert EngineConfig.read(tmp_path) == config
    assert is_engine_folder(tmp_path)
    assert config.environment == Environment.here()


def test_another_format_version(folder: Path) -> None:
    """It is said what wrote it, where that is another trtspec."""
    edit(folder, lambda data: data.update(format_version=11))
    with pytest.raises(EngineError, match="has engine format 11, this trtspec reads 10; rebuild"):
        open_folder(folder)
    edit(folder, lambda data: data.update(written_by="trtspec 9.1.0"))
    with pytest.raises(EngineError, match=r"format 11 of trtspec 9\.1\.0, this trtspec reads 10"):
        open_folder(folder)


@pytest.mark.parametrize(
    "key",
    ["target", "drafts", "build", "speculation", "fingerprints", "environment", "weights"],
)
def test_a_missing_part_of_the_config(folder: Path, key: str) -> None:
    edit(folder, lambda data: data.pop(key))
    with pytest.raises(EngineError, match=f"lacks '{key}'; rebuild"):
        open_folder(folder)


def test_an_unknown_key(folder: Path) -> None:
    edit(folder, lambda data: data["build"].update(max_beams=3))
    with pytest.raises(ConfigError, match="unknown option `max_beams`"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("name", "other"),
    [("torch", "1.0"), ("machine", "pdp11"), ("vector_isa", "AVX9"), ("ops", 99)],
)
def test_another_environment(folder: Path, name: str, other: object) -> None:
    """Compiled code is refused, with both values; an eager engine has none."""
    edit(folder, lambda data: data["environment"].update({name: other}))
    open_folder(folder).shutdown()
    edit(folder, lambda data: data["build"].update(backend="aoti"))
    here = getattr(Environment.here(), name)
    with pytest.raises(EngineError, match=rf"compiled for {name} {other} \(here {here}\)"):
        open_folder(folder)


def test_instructions_that_are_not_here(folder: Path) -> None:
    """Code that was compiled on a processor with more of them would be killed by the first; one
    with less does not matter, nor folders that say nothing."""
    edit(folder, lambda data: data["build"].update(backend="aoti"))
    here = Environment.here().instructions
    assert here is not None
    refused = r"compiled for instructions avx9_x amx_y \(here missing\); rebuild"
    edit(folder, lambda data: data["environment"].update(instructions=f"{here} avx9_x amx_y"))
    with pytest.raises(EngineError, match=refused):
        EngineConfig.read(folder)
    for fewer in (here.split()[0], None):
        edit(folder, lambda data, said=fewer: data["environment"].update(instructions=said))
        EngineConfig.read(folder)


def test_what_a_kernel_says_of_a_processor(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    assert cpu_instructions(tmp_path) is None
    info = tmp_path / "proc" / "cpuinfo"
    info.write_text("processor: 0\nflags\t\t: fpu ibrs avx512_bf16 fma avx2 amx_tile\nflags: sse\n")
    assert cpu_instructions(tmp_path) == "amx_tile avx2 avx512_bf16 fma"
    info.write_text("Features : fp asimd sve\n")
    assert cpu_instructions(tmp_path) == "asimd fp sve"


def test_a_device_that_is_not_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before a weight is read, whatever the backend."""
    gpu = {"gpu": "NVIDIA H200", "compute_capability": "9.0"}
    edit(
        folder, lambda data: (data["build"].update(device="cuda"), data["environment"].update(gpu))
    )
    built = r"was built for cuda \(NVIDIA H200, compute capability 9\.0\), but"
    monkeypatch.setattr("torch.version.cuda", None)
    with pytest.raises(EngineError, match=rf"{built} torch .* has no CUDA; .* --device cpu"):
        open_folder(folder)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(EngineError, match=rf"{built} torch .* finds no CUDA device; check"):
        open_folder(folder)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("trtspec.ops.native.HAS_CUDA_OPS", False)
    monkeypatch.setattr("trtspec.backends.device.register_cuda_ops", lambda: False)
    with pytest.raises(EngineError, match=rf"{built} this installation .* has no CUDA ops .*nvcc"):
        open_folder(folder)
    edit(folder, lambda data: data["build"].update(backend="tensorrt"))
    with pytest.raises(EngineError, match=r"no CUDA ops .* trtspec\[cuda\], or rebuild"):
        open_folder(folder)
    monkeypatch.setattr("trtspec.backends.device.register_cuda_ops", lambda: True)
    problems = {name: backend_named(name).device_problem("cuda") for name in ("tensorrt", "aoti")}
    assert problems["tensorrt"] is None, "the kernels are compiled when needed"
    assert problems["aoti"] is not None


def test_another_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The architecture must match, the name need not."""
    monkeypatch.setattr(base, "device_problem", lambda device: None)
    monkeypatch.setattr(environments, "compute_capability", lambda: "8.6")
    monkeypatch.setattr(environments, "gpu_name", lambda: "NVIDIA RTX A4000")
    gpu = {"gpu": "NVIDIA A10", "compute_capability": "8.6"}
    edit(folder, lambda data: data["build"].update(device="cuda", backend="aoti"))
    edit(folder, lambda data: data["environment"].update(gpu))
    config = EngineConfig.read(folder)
    assert config.environment.gpu == "NVIDIA A10"
    assert config.to_dict()["environment"].keys() >= gpu.keys()
    edit(folder, lambda data: data["environment"].update(compute_capability="9.0"))
    with pytest.raises(EngineError, match=r"compiled for compute_capability 9\.0 \(here 8\.6\)"):
        EngineConfig.read(folder)


def test_a_tensorrt_engine_of_another_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU and version must match, what else was there at the build need not."""
    monkeypatch.setattr(tensorrt, "device_problem", lambda *_, **__: None)
    monkeypatch.setattr(environments, "compute_capability", lambda: "9.0")
    monkeypatch.setattr(environments, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(tensorrt, "require_cuda_python", lambda: None)
    monkeypatch.setattr(tensorrt, "tensorrt_version", lambda: "tensorrt_rtx 1.7.1")
    built = {"compute_capability": "9.0", "tensorrt": "tensorrt_rtx 1.7.1", "torch": "1.0"}
    edit(folder, lambda data: data["build"].update(device="cuda", backend="tensorrt"))
    edit(folder, lambda data: data["environment"].update(built))
    EngineConfig.read(folder)
    other = {"compute_capability": "8.9", "tensorrt": "tensorrt 11.0"}
    edit(folder, lambda data: data["environment"].update(other))
    words = (
        r"for compute_capability 8\.9 \(here 9\.0\), tensorrt tensorrt 11\.0 \(here tensorrt_rtx "
        r"1\.7\.1\); rebuild"
    )
    with pytest.raises(EngineError, match=words):
        EngineConfig.read(folder)


def test_a_cpu_folder_names_no_gpu(built: Path) -> None:
    data = json.loads((built / "config.json").read_text())
    assert data["build"]["device"] == "cpu"
    assert data["environment"].keys() == {
        *("torch", "machine", "vector_isa", "instructions", "ops")
    }


@pytest.mark.parametrize("model", ["target", "draft"])
def test_weights(folder: Path, model: str) -> None:
    file = folder / model / "weights.safetensors"
    weights = load_file(file)
    save_file({k: v for k, v in weights.items() if k != "norm.weight"}, file)
    with pytest.raises(EngineError, match=r"does not fit .*norm\.weight"):
        open_folder(folder)
    save_file({**weights, "more": weights["norm.weight"].clone()}, file)
    with pytest.raises(EngineError, match=r"does not fit .*more"):
        open_folder(folder)
    norm = weights["norm.weight"]
    built = rf"it was built with F32 \[{len(norm)}\]; rebuild"
    for other, here in (
        (norm[:5], r"F32 \[5\]"),
        (norm[None], rf"F32 \[1, {len(norm)}\]"),
        (norm.to(torch.bfloat16), rf"BF16 \[{len(norm)}\]"),
    ):
        save_file({**weights, "norm.weight": other.clone()}, file)
        with pytest.raises(EngineError, match=rf"tensor 'norm\.weight' is {here}, {built}"):
            open_folder(folder)
    data = file.read_bytes()
    for content in (data[: len(data) // 2], b"", b"\0" * 100):
        file.write_bytes(content)
        with pytest.raises(EngineError, match=rf"{model}/weights.safetensors cannot be read"):
            open_folder(folder)
    file.unlink()
    with pytest.raises(EngineError, match=rf"{model}/weights.safetensors cannot be read"):
        open_folder(folder)


def test_compiled_files(folder: Path) -> None:
    """An engine that says it was compiled, and is not."""
    edit(folder, lambda data: data["build"].update(backend="aoti"))
    with pytest.raises(EngineError, match=r"target/model\.pt2 cannot be loaded"):
        open_folder(folder)
    (folder / "target" / "model.pt2").write_bytes(b"PK\3\4 half a package")
    with pytest.raises(EngineError, match=r"target/model\.pt2 cannot be loaded"):
        open_folder(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"format_version": 1', "\xff"])
def test_no_engine_folder(folder: Path, content: str) -> None:
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    assert not is_engine_folder(folder)
    with pytest.raises(EngineError, match=r"config\.json"):
        EngineConfig.read(folder)


def with_tree(config: EngineConfig, **tree: int) -> EngineConfig:
    (draft,) = config.drafts
    contract = replace(draft.speculation, **tree)
    return replace(config, drafts=(replace(draft, speculation=contract),))


def test_layout(built: Path) -> None:
    """Block tables reach past max_seq_len by the rows of a step, masks hold them all."""
    config = EngineConfig.read(built)
    assert (config.layout.blocks_per_sequence, config.layout.mask_words) == ((128 + 64) // 16, 1)
    wide = with_tree(config, topk=16, num_draft_tokens=200)
    assert (wide.layout.blocks_per_sequence, wide.layout.mask_words) == (-(-(128 + 200) // 16), 4)
    deep = with_tree(config, topk=16, num_steps=9)
    assert deep.layout.mask_words == 3  # 1 + 8 x 16 rows of a rollout
