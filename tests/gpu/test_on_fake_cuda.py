"""Every test of this folder on a CUDA device that is faked on the CPU (see `fake_cuda`), so that
none dies of its own code where it first meets a real one. What the kernels compute is the CPU's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec import LLM, build
from trtspec.backends.aoti.session import AotiSession
from trtspec.backends.staging import Staging
from trtspec.backends.tensorrt import options as tensorrt_options
from trtspec.config.tree import TreeShape
from trtspec.executor.resident.target import ResidentTarget
from trtspec.models.rope import Rotation, rotate
from trtspec.ops import cuda_ops, paged_tree_attention
from trtspec.ops.acceptance import accept
from trtspec.ops.few_row_linear import Values
from trtspec.ops.kv_compact import kv_compact
from trtspec.ops.sampling import draft_candidates, sample

from .. import fake_cuda, inside
from ..e2e.helpers import TinyModels, open_llm
from ..fake_cuda import can_fake, played_cuda
from . import test_attention, test_cuda_ops, test_engine, test_kernels, test_tensorrt

MODULES = (test_attention, test_cuda_ops, test_engine, test_kernels, test_tensorrt)
TREES = [(30, 6, True), (0, 5, True), (9, 1, False)]

KERNELS: list[tuple[Callable[..., None], dict[str, Any]]] = [
    *(
        (
            test_attention.test_attention,
            {
                "requests": TREES,
                "heads": 4,
                "kv_heads": 2,
                "head_dim": 16,
                "dtype": dtype,
                "window": window,
            },
        )
        for dtype, window in ((torch.float32, 0), (torch.bfloat16, 8))
    ),
    (
        test_attention.test_attention_over_8_bits,
        {"head_dim": 20, "dtype": torch.bfloat16, "window": 48},
    ),
    (test_attention.test_attention_in_prefix_tiles, {"head_dim": 64, "window": 0}),
    (
        test_attention.test_rotated_attention_has_the_bits_of_rotating_first,
        {"pairs": 20, "interleaved": True},
    ),
    (test_attention.test_attention_in_a_graph_follows_its_buffers, {"tiles": "prefix"}),
    (test_kernels.test_sample, {"case": 5}),
    (test_kernels.test_draft_candidates, {"case": 5, "mapped": False}),
    (test_kernels.test_draft_candidates, {"case": 0, "mapped": True}),
    (test_kernels.test_accept, {}),
    *((test_kernels.test_growth, {"is_static": is_static}) for is_static in (False, True)),
    (test_kernels.test_marginal_trees, {"shape": TreeShape(4, 5, 60)}),
    (test_kernels.test_kv_compact, {"dtype": torch.bfloat16}),
    (test_kernels.test_resident_step, {}),
    (test_kernels.test_states, {"dtype": torch.bfloat16, "case": "mixed"}),
    (test_kernels.test_few_row_linear, {"values": Values.int4}),
    (test_cuda_ops.test_sample, {"rows": 5, "vocab": 99}),
    (test_cuda_ops.test_mask_logits, {"rows": 5, "vocab": 99}),
    (test_cuda_ops.test_draft_candidates, {"rows": 5, "vocab": 99, "k": 4, "is_mapped": False}),
    (test_cuda_ops.test_draft_candidates, {"rows": 5, "vocab": 99, "k": 4, "is_mapped": True}),
    (test_cuda_ops.test_accept, {}),
    (test_cuda_ops.test_growth, {"is_static": False}),
    (test_cuda_ops.test_marginal_trees, {}),
    (test_cuda_ops.test_kv_compact, {"dtype": torch.float16}),
    (test_cuda_ops.test_tree_mask, {"seed": 1, "dtype": torch.bfloat16}),
]
ENGINES: list[tuple[Callable[..., None], dict[str, Any]]] = [
    (test_engine.test_eager_modules, {"method": "hybrid", "graphs": True}),
    (test_engine.test_eager_modules, {"method": "none", "graphs": False}),
    (test_engine.test_steps_ahead, {"method": "none", "graphs": True}),
    (test_engine.test_steps_ahead, {"method": "eagle3", "graphs": True}),
    (test_engine.test_steps_ahead, {"method": "eagle3", "graphs": False}),
    (test_engine.test_compiled, {"method": "ngram"}),
    *(
        (test_engine.test_verdicts_come_with_the_call, {"graphs": graphs})
        for graphs in (True, False)
    ),
    (test_engine.test_requests_come_and_go, {}),
    (test_engine.test_logprobs_are_those_of_the_cpu, {}),
    (test_engine.test_bfloat16_logits_are_not_rounded, {}),
    (test_engine.test_few_row_products, {"weights": "int8"}),
]
TENSORRT: list[tuple[Callable[..., None], dict[str, Any]]] = [
    (test_tensorrt.test_the_texts_of_aoti, {"graphs": True}),
    (test_tensorrt.test_sixteen_bits, {"dtype": "float32"}),
    (test_tensorrt.test_refitted_engines, {"option": "refit"}),
    (test_tensorrt.test_compiled_kernels_are_kept, {}),
]

pytestmark = pytest.mark.skipif(not can_fake(), reason="torch has CUDA itself")


def named(case: tuple[Callable[..., None], dict[str, Any]]) -> str:
    return f"{case[0].__module__.rpartition('.')[2]}.{case[0].__name__}"


def test_all_are_played() -> None:
    def tests(module: ModuleType) -> set[str]:
        short = module.__name__.rpartition(".")[2]
        return {f"{short}.{name}" for name in vars(module) if name.startswith("test_")}

    assert {named(case) for case in (*KERNELS, *ENGINES, *TENSORRT)} == set().union(
        *map(tests, MODULES)
    )


def _rotated(q: Tensor, k: Tensor, *rest: Any) -> Tensor:
    """The op that only CUDA has."""
    rotation = Rotation(*rest[-3:])
    return paged_tree_attention(rotate(q, rotation), rotate(k, rotation), *rest[:-3])


@pytest.mark.parametrize("case", KERNELS, ids=named)
def test_kernels_and_launches(
    case: tuple[Callable[..., None], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are launched by address are the ops themselves here."""
    for op in (sample, draft_candidates, accept, kv_compact):
        monkeypatch.setattr(cuda_ops, op.__name__, op)
    for name in ("mask_logits", "expand_tree", "keep_best", "marginal_trees"):
        monkeypatch.setattr(cuda_ops, name, getattr(torch.ops.trtspec, name))
    monkeypatch.setattr(test_attention, "force", lambda tiles: None)
    monkeypatch.setattr(test_attention, "rotated", _rotated)
    test, given = case
    with played_cuda():
        test(**given)


def given_for(
    test: Callable[..., None], values: dict[str, Any], fixtures: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a test: those of the case, and the fixtures that it names."""
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    return {name: values[name] if name in values else fixtures[name] for name in wanted}


@pytest.fixture(scope="module")
def head(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return test_engine.make_head(models, tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def texts(models: TinyModels) -> list[list[list[int]]]:
    return test_engine.texts_of_the_cpu(models)


@pytest.mark.slow
@pytest.mark.parametrize("case", ENGINES, ids=named)
def test_engines(
    case: tuple[Callable[..., None], dict[str, Any]],
    models: TinyModels,
    head: Path,
    texts: list[list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Packages for CUDA cannot be faked: modules stand in for them."""

    def open_gpu(models: TinyModels, config: Any, **options: Any) -> Any:
        limits = {**test_engine.LIMITS, **options, "backend": "eager"}
        return open_llm(models.folder("llama"), config, device="cuda", **limits)

    monkeypatch.setattr(test_engine, "open_gpu", open_gpu)
    monkeypatch.setattr(test_engine, "weight_names", lambda llm: [])
    assert "_weights" in AotiSession.__init__.__code__.co_names, "what `weight_names` asks for"
    fixtures = {"models": models, "head": head, "expected": texts, "monkeypatch": monkeypatch}
    test, given = case
    with played_cuda():
        test(**given_for(test, given, fixtures))


@pytest.fixture(scope="module")
def plain_folder(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    config = test_tensorrt.make_config(models, tmp_path_factory.mktemp("head"))
    limits = test_tensorrt.LIMITS
    return build(models.folder("llama"), config, backend="onnx", dtype="float32", **limits)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("case", TENSORRT, ids=named)
def test_tensorrt_engines(
    case: tuple[Callable[..., None], dict[str, Any]],
    models: TinyModels,
    plain_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a fake TensorRT, whose engines are run by ONNX Runtime."""
    from ..backends.fake_tensorrt import as_tensorrt, installed

    def build_here(models: TinyModels, config: Any, dtype: str, **options: Any) -> Path:
        copy = tmp_path / f"built-{len(options)}"
        shutil.copytree(plain_folder, copy, dirs_exist_ok=True)
        as_tensorrt(copy, tensorrt_options.TensorRTConfig(**options), device="cuda")
        return copy

    monkeypatch.setattr(test_tensorrt, "build_here", build_here)
    with open_llm(models.folder("llama"), **test_tensorrt.LIMITS) as llm:
        expected = test_tensorrt.texts(llm)
    fixtures = {"models": models, "config": None, "expected": expected, "tmp_path": tmp_path}
    test, given = case
    with played_cuda(), installed():
        test(**given_for(test, given, fixtures))


@pytest.mark.slow
def test_a_rollout_over_slots_waits_once(
    models: TinyModels, plain_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its tree, at the end, however many depths it has."""
    from ..backends.fake_tensorrt import as_tensorrt, installed

    copy = tmp_path / "engine"
    shutil.copytree(plain_folder, copy)
    as_tensorrt(copy, device="cuda")
    waits = []
    with played_cuda(), installed(), LLM(copy, skip_tokenizer_init=True) as llm:
        draft: Any = inside.drafts(llm)[0]
        rollout = draft.rollout

        def counted(*args: Any, **options: Any) -> Any:
            fake_cuda.waits.clear()
            found = rollout(*args, **options)
            waits.append(list(fake_cuda.waits))
            return found

        monkeypatch.setattr(draft, "rollout", counted)
        llm.generate(test_tensorrt.PROMPTS, test_tensorrt.GREEDY, use_tqdm=False)
    assert len(waits) > 3 and all(len(found) == 1 for found in waits), waits


@pytest.mark.slow
def test_a_step_ahead_waits_for_nothing(
    models: TinyModels, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launch, that is, which makes one copy to the device, and another if blocks were added;
    the result of each is waited for once."""
    launch, collect, place = ResidentTarget.launch, ResidentTarget.collect, Staging.to_device
    copies: list[int] = []
    waits: dict[str, list[list[str]]] = {"launch": [], "collect": []}

    def counted(name: str, half: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: ResidentTarget, given: Any) -> Any:
            fake_cuda.waits.clear()
            copies.append(0)
            found = half(self, given)
            if name == "collect" or not given.plan.only_generates:
                copies.pop()
            if given.plan.only_generates:
                waits[name].append(list(fake_cuda.waits))
            return found

        return run

    def placed(self: Staging, tensors: Any, stable: bool = False) -> Any:
        if copies:
            copies[-1] += 1
        return place(self, tensors, stable)

    monkeypatch.setattr(Staging, "to_device", placed)
    monkeypatch.setattr(ResidentTarget, "launch", counted("launch", launch))
    monkeypatch.setattr(ResidentTarget, "collect", counted("collect", collect))
    config = test_engine.config_of("eagle3", models, head)
    given = {**test_engine.LIMITS, "steps_ahead": 1, "backend": "eager", "device": "cuda"}
    with played_cuda(), open_llm(models.folder("llama"), config, **given) as llm:
        llm.generate(test_engine.PROMPTS, test_engine.GREEDY, use_tqdm=False)
    assert len(waits["launch"]) > 5 and not any(waits["launch"])
    assert copies.count(1) > len(copies) / 2 and max(copies) == 2
    assert waits["collect"] == [["event"]] * len(waits["collect"])
