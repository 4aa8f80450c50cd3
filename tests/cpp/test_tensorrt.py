"""Engine folders of backend tensorrt in the C++ runtime, over stand-ins for TensorRT and CUDA in
which ONNX Runtime runs the graphs: the tokens of backend onnx, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .equality import (
    OPTIONS,
    TIMES,
    changes_of_logits,
    cycling_samples,
    deep_samples,
    flags_of,
    samples,
)
from .program import Program, Result, Sample, write_samples
from .test_bad_input import edited, flags, removed

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from .fake_engines import as_fake_engines

pytestmark = pytest.mark.slow

NGRAM = ("--speculative", "ngram", "--max_draft_len", 6, "--prompt_lookup_min", 1)
NONE = ("--speculative", "none")
# Of the engines whose drafts are right about others than `cycling_samples`.
SAMPLES: dict[str, Callable[[], Sequence[Sample]]] = {
    **dict.fromkeys(("chain", "tree", "eagle3"), samples),
    "modules": deep_samples,
}


@pytest.fixture(scope="session")
def folders(
    onnx_engines: dict[str, Path],
    onnx_modules_engine: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, Path]]:
    """A folder of backend onnx by its name, and the same as one of backend tensorrt."""
    root = tmp_path_factory.mktemp("tensorrt")

    def find(name: str) -> tuple[Path, Path]:
        engine = onnx_modules_engine if name == "modules" else onnx_engines[name]
        copy = root / name
        if not copy.is_dir():
            shutil.copytree(engine, copy)
            as_fake_engines(copy)
        return engine, copy

    return find


def run_both(
    programs: tuple[Program, Program],
    engines: tuple[Path, Path],
    cases: Sequence[Sample],
    folder: Path,
    *flags: Any,
) -> list[Result]:
    """Each program with its engine."""
    results = []
    for program, engine in zip(programs, engines, strict=True):
        out = folder / f"of_{program.path.name}"
        out.mkdir()
        results.append(program.run(engine, cases, out, *flags))
    return results


@pytest.mark.parametrize(
    ("name", "given", "options"),
    [
        pytest.param("chain", NONE, "plain", marks=pytest.mark.matrix),
        ("chain", NGRAM, "few_slots"),
        pytest.param("chain", (), "few_slots", marks=pytest.mark.matrix),
        pytest.param("tree", (), "plain", marks=pytest.mark.matrix),
        pytest.param("eagle3", (), "plain", marks=pytest.mark.matrix),
        ("eagle3", ("--max_draft_len", 2), "without_reuse"),
        pytest.param("static", (), "plain", marks=pytest.mark.matrix),
        ("pard", (), "plain"),
        pytest.param("p_eagle", (), "plain", marks=pytest.mark.matrix),  # below, in chunks
        ("modules", (), "plain"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value[1:2])),
)
def test_tokens_of_onnx(
    program: Program,
    fake_program: Program,
    folders: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    name: str,
    given: tuple[Any, ...],
    options: str,
) -> None:
    """Tokens and figures; memory of the device cannot be touched from outside."""
    portable, engine = folders(name)
    cases = SAMPLES.get(name, cycling_samples)()
    more = (*given, *OPTIONS[options][1], *flags_of(0.8))
    expected, found = run_both((program, fake_program), (portable, engine), cases, tmp_path, *more)
    assert found.tokens == expected.tokens
    assert [r["metrics"] for r in found.responses] == [r["metrics"] for r in expected.responses]
    metrics = [
        {key: value for key, value in result.report["metrics"].items() if key not in TIMES}
        for result in (expected, found)
    ]
    assert metrics[0] == metrics[1]
    assert found.report["engine"]["backend"] == "tensorrt"
    assert found.report["machine"]["tensorrt"] == "tensorrt_rtx 1.7.0"
    drafted = given != NONE
    assert (found.figures["acceptance_length"] > 1.0) == drafted


@pytest.mark.matrix
def test_changed_logits(
    program: Program,
    fake_program: Program,
    folders: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    """They come to the host."""
    more = flags_of(0.8, changes_of_logits())
    cases = samples()[:5]
    expected, found = run_both((program, fake_program), folders("eagle3"), cases, tmp_path, *more)
    assert found.responses == expected.responses
    assert all(len(r["logprobs"]) == len(r["tokens"]) for r in found.responses)


def test_a_chunk_in_a_call_of_its_own(
    program: Program,
    fake_program: Program,
    folders: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    """A prompt of more rows than a step that verifies, beside one that is: another profile, and
    logits that come from two calls."""
    engine = tmp_path / "onnx"
    shutil.copytree(folders("p_eagle")[0], engine)
    edited(build__max_num_tokens=128)(engine)
    shutil.copytree(engine, tmp_path / "tensorrt")
    as_fake_engines(tmp_path / "tensorrt")
    short, *_ = cycling_samples()
    cases = [short, ([*short[0], *short[0][1:] * 4], 40), ([*short[0], *short[0][1:] * 3], 8)]
    assert [len(ids) > 64 for ids, _ in cases] == [False, True, True]
    folders_of_both = (engine, tmp_path / "tensorrt")
    results = run_both(
        (program, fake_program), folders_of_both, cases, tmp_path, "--concurrency", 2
    )
    assert results[0].tokens == results[1].tokens
    assert all(result.figures["acceptance_length"] > 1.2 for result in results)


REFUSED: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "gpu": (
        edited(environment__compute_capability="9.0"),
        ("compute_capability 9.0 (here 8.9)", "trtspec-build"),
    ),
    "version": (
        edited(environment__tensorrt="tensorrt 11.1.0.106"),
        ("tensorrt tensorrt 11.1.0.106 (here tensorrt_rtx 1.7.0)", "trtspec-build"),
    ),
    "batch": (
        edited(build__max_batch_size=9),
        ("target.engine takes at most 4 requests", "max_batch_size is 9", "trtspec-build"),
    ),
    "plugins": (edited(build__backend_options__plugins=True), ("plugins", "--no-plugins")),
    "paged": (
        edited(build__backend_options__plugins=True, build__backend_options__paged_attention=True),
        ("attends by a plugin", "without --paged_attention"),
    ),
    "stripped": (edited(build__backend_options__strip_plan=True), ("Python only", "--strip_plan")),
    "refit": (edited(build__backend_options__refit=True), ("Python only", "--refit")),
    "no_engine": (removed("target.engine"), ("target.engine cannot be read", "trtspec-build")),
    "no_draft": (removed("draft-head.engine"), ("draft-head.engine cannot", "trtspec-build")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(
    fake_program: Program,
    folders: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
    name: str,
) -> None:
    damage, named = REFUSED[name]
    folder = tmp_path / "engine"
    shutil.copytree(folders("pard")[1], folder)
    damage(folder)
    data = write_samples(tmp_path / "samples.json", [([5, 6, 7], 4)])
    status, line = fake_program.refuse(*flags(folder, data))
    assert status == 1
    assert all(part in line for part in (str(folder), *named)), line


def test_a_smaller_batch_fits(
    fake_program: Program, folders: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """Than that of a folder whose engines take less than it says."""
    folder = tmp_path / "engine"
    shutil.copytree(folders("pard")[1], folder)
    edited(build__max_batch_size=9)(folder)
    result = fake_program.run(folder, [([5, 6, 7], 4)], tmp_path, "--max_batch_size", 4)
    assert [len(tokens) for tokens in result.tokens] == [4]


def test_without_tensorrt(
    program: Program, folders: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    """The program as it is built here: without TensorRT, or without its library or a GPU."""
    data = write_samples(tmp_path / "samples.json", [([5, 6, 7], 4)])
    status, line = program.refuse(*flags(folders("pard")[1], data))
    assert status == 1 and "backend 'tensorrt'" in line
    remedies = ("-DTENSORRT_ROOT=<folder of TensorRT", "--tensorrt", "nvidia-smi")
    assert any(remedy in line for remedy in remedies), line
