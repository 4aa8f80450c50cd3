"""Building engine folders: complete or not at all, once, and never from leftovers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

import trtspec.builder.build_engine as build_module
import trtspec.builder.graph_cache as graph_cache
from trtspec.builder.build_engine import build_engine, cached_engine
from trtspec.builder.locate import cache_root
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.builder.scratch import scratch_folder
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig
from trtspec.errors import BuildError, CheckpointError
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import PARAMS_40, TinyModels, chain, open_llm, random_prompt
from ..e2e.tiny_tokenizer import save_bytes

EAGER = BuildConfig("float32", 2, 64, backend="eager")
PROMPT = random_prompt(80, 20)


@pytest.fixture
def plan(models: TinyModels) -> BuildPlan:
    speculation = parse_speculative_config(chain(models.draft("llama"), 3))
    return plan_build(models.folder("llama"), EAGER, speculation)


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The scratch folders of all builds that really ran."""
    scratches: list[Path] = []
    write = build_module._write_engine

    def counted(plan: BuildPlan, folder: Path) -> None:
        scratches.append(folder)
        write(plan, folder)

    monkeypatch.setattr(build_module, "_write_engine", counted)
    return scratches


def test_contents(models: TinyModels, plan: BuildPlan, tmp_path: Path) -> None:
    folder = build_engine(plan, tmp_path / "a" / "engine")
    assert files(folder) == {
        "config.json", "target/weights.safetensors", "draft/weights.safetensors",
        "tokenizer/config.json",
    }  # fmt: skip
    assert os.listdir(tmp_path / "a") == ["engine"]
    assert EngineConfig.read(folder) == plan.engine
    with safe_open(folder / "target" / "weights.safetensors", "pt") as weights:
        assert "layers.0.attn.qkv.packed" in weights.keys()  # noqa: SIM118
    assert folder.stat().st_mode & 0o777 == (tmp_path / "a").stat().st_mode & 0o777


def test_tokenizer_files_go_along(models: TinyModels, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(models.folder("llama"), tmp_path / "model")
    save_bytes(checkpoint, 203 + 80)
    named = "additional_chat_templates/rag.jinja"
    (checkpoint / named).parent.mkdir()
    (checkpoint / named).write_text("{{ documents }}")
    folder = build_engine(plan_build(checkpoint, EAGER), tmp_path / "engine")
    kept = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", named}
    assert {f"tokenizer/{name}" for name in kept} <= files(folder)


def test_an_equal_build_is_left_alone(
    plan: BuildPlan, tmp_path: Path, builds: list[Path], models: TinyModels
) -> None:
    for _ in range(2):
        build_engine(plan, tmp_path / "engine")
    assert len(builds) == 1
    other = plan_build(models.folder("llama"), EAGER)
    with pytest.raises(BuildError, match=r"exists and is not this engine.*--force"):
        build_engine(other, tmp_path / "engine")
    assert EngineConfig.read(tmp_path / "engine") == plan.engine
    build_engine(other, tmp_path / "engine", force=True)
    assert EngineConfig.read(tmp_path / "engine") == other.engine
    assert os.listdir(tmp_path) == ["engine"]


def test_a_folder_with_something_else_is_not_touched(plan: BuildPlan, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(BuildError, match="exists and is not this engine"):
        build_engine(plan, tmp_path)
    with pytest.raises(BuildError, match="exists and is not this engine"):
        build_engine(plan, tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert build_engine(plan, tmp_path / "empty").is_dir()


@pytest.mark.parametrize("error", [RuntimeError("no"), OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["load_target", "save_file", "_move_into_place"])
def test_a_failed_build_leaves_nothing(
    plan: BuildPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: BaseException,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(build_module, step, fail)
        expected = BuildError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected, match="disk full" if expected is BuildError else None):
            build_engine(plan, tmp_path / "engine")
    assert os.listdir(tmp_path) == []
    assert build_engine(plan, tmp_path / "engine").is_dir()


def test_the_current_folder(
    plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert build_engine(plan, Path()) == tmp_path
    assert EngineConfig.read(tmp_path) == plan.engine


def test_a_place_that_cannot_be_written(plan: BuildPlan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot be written"):
        build_engine(plan, tmp_path / "file" / "engine")


def killed_build(where: Path, suffix: str) -> Path:
    """What a build that was killed before its rename leaves."""
    scratch = where.with_name(f".{where.name}.building-{suffix}")
    (scratch / "target").mkdir(parents=True)
    (scratch / "config.json").write_text("{}")
    return scratch


def test_leftovers_of_killed_builds(plan: BuildPlan, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    dead = [killed_build(engine, suffix) for suffix in ("0badcafe", "0badcafe-old", "")]
    dead.append(killed_build(tmp_path / "other", "0badcafe"))
    mine = tmp_path / ".my.building-plans"
    mine.mkdir()
    with scratch_folder(engine) as alive:  # whoever's, and wherever that process runs
        assert not any(path.exists() for path in dead)
        build_engine(plan, engine)
        assert alive.exists() and mine.exists()
    assert not alive.exists()
    assert EngineConfig.read(engine) == plan.engine


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_that_loads(models: TinyModels, tmp_path: Path) -> None:
    """Killed for real, in the middle: the next build starts over and removes the pieces."""
    script = (
        "import os, sys, trtspec.builder.build_engine as b\n"
        "from trtspec.builder.plan import plan_build\n"
        "from trtspec.config.build_config import BuildConfig\n"
        "b.EngineConfig.write = lambda self, folder: os.kill(os.getpid(), 9)\n"
        "plan = plan_build(sys.argv[1], BuildConfig('float32', 2, 64, backend='eager'))\n"
        "b.build_engine(plan, b.Path(sys.argv[2]))\n"
    )
    engine = tmp_path / "engine"
    command = [sys.executable, "-c", script, str(models.folder("llama")), str(engine)]
    assert subprocess.run(command, check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".engine.building-") and not (left / "config.json").exists()
    with pytest.raises(CheckpointError):
        open_llm(left)
    build_engine(plan_build(models.folder("llama"), EAGER), engine)
    assert os.listdir(tmp_path) == ["engine"]


def test_a_second_llm_builds_nothing(
    models: TinyModels, tmp_path: Path, builds: list[Path]
) -> None:
    checkpoint = shutil.copytree(models.folder("llama"), tmp_path / "model")
    options = {"max_seq_len": 100}
    for _ in range(2):
        with open_llm(checkpoint, **options) as llm:
            assert llm.generate(PROMPT, PARAMS_40).outputs[0].token_ids == models.greedy(
                "llama", PROMPT
            )
    moved = checkpoint.rename(tmp_path / "moved")  # its place is no part of it
    open_llm(moved, **options).shutdown()
    assert len(builds) == 1
    assert builds[0].parent == cache_root() / "engines"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "generation_config.json").write_text('{"eos_token_id": 3}'),
        lambda model: save_bytes(model, 270),
        lambda model: (model / "config.json").write_text(
            json.dumps({**json.loads((model / "config.json").read_text()), "rms_norm_eps": 0.1})
        ),
        lambda model: flip_a_bit(model / "model.safetensors"),
    ],
    ids=["generation_config", "tokenizer", "config", "weights"],
)
def test_a_changed_checkpoint_is_built_again(
    models: TinyModels, tmp_path: Path, builds: list[Path], change: Callable[[Path], object]
) -> None:
    checkpoint = shutil.copytree(models.folder("llama"), tmp_path / "model")
    cached_engine(plan_build(checkpoint, EAGER))
    before = len(builds)
    change(checkpoint)
    folder = cached_engine(plan_build(checkpoint, EAGER))
    assert len(builds) == before + 1
    assert cached_engine(plan_build(checkpoint, EAGER)) == folder
    assert len(builds) == before + 1


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    times = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_damaged_engine_in_the_cache_is_built_again(
    models: TinyModels, builds: list[Path]
) -> None:
    plan = plan_build(models.folder("qwen3"), EAGER)
    folder = cached_engine(plan)
    (folder / "config.json").write_text("{")
    assert cached_engine(plan) == folder
    (folder / "config.json").unlink()
    cached_engine(plan)
    assert len(builds) == 3
    assert EngineConfig.read(folder) == plan.engine


def test_a_faster_builder_of_the_same_engine(
    plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may build the same engine at once; the second to finish uses the first's."""
    write = build_module._write_engine

    built: list[int] = []

    def overtaken(inner: BuildPlan, folder: Path) -> None:
        monkeypatch.setattr(build_module, "_write_engine", write)
        built.append(build_engine(plan, tmp_path / "engine").stat().st_ino)
        write(inner, folder)

    monkeypatch.setattr(build_module, "_write_engine", overtaken)
    folder = build_engine(plan, tmp_path / "engine")
    assert EngineConfig.read(folder) == plan.engine
    assert [folder.stat().st_ino] == built  # the first may be loading it by now
    assert os.listdir(tmp_path) == ["engine"]


def test_no_compiler(models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    build = BuildConfig("float32", 2, 33, backend="aoti")
    plan = plan_build(models.folder("llama"), build)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler found .* install"):
        build_engine(plan, tmp_path / "engine")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_graph_that_fails_stops_the_others(
    plan: BuildPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with what its compiler said, and no process goes on."""
    workers: list[int] = []
    popen = subprocess.Popen

    def started(*arguments: Any, **options: Any) -> Any:
        worker = popen(*arguments, **options)
        workers.append(worker.pid)
        return worker

    monkeypatch.setattr(subprocess, "Popen", started)
    names = ("target/model.pt2", "draft/none.pt2")
    packages = {name: tmp_path / name.replace("/", "-") for name in names}
    engine = replace(plan.engine, build=replace(plan.engine.build, backend="aoti"))
    with pytest.raises(BuildError, match=r"^draft/none.pt2 did not compile: [^@]*KeyError"):
        graph_cache._compile_all(engine, packages)
    (worker,) = workers
    for _ in range(100):
        try:
            os.killpg(worker, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("a process is still there")
    assert os.listdir(tmp_path) == []
