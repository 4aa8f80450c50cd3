"""Real TensorRT engines on the GPU that is here, of whatever compute capability."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams, TensorRTConfig, build
from trtspec.backends.device import compute_capability, device_problem
from trtspec.backends.tensorrt.cuda_stream import cudart
from trtspec.backends.tensorrt.package import tensorrt_version, trt
from trtspec.backends.tensorrt.session import TensorRTSession
from trtspec.errors import BuildError

from .. import inside
from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import TinyModels, assert_no_leak, open_llm, random_prompt, tokens

_PROBLEM = device_problem("cuda", compiles_kernels=True) or (
    "TensorRT is not installed"
    if trt is None
    else "cuda-python is not installed"
    if cudart is None
    else None
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(_PROBLEM is not None, reason=f"no TensorRT engine runs here: {_PROBLEM}"),
]

PROMPTS = [random_prompt(400, 90), [77], random_prompt(401, 6) * 4, random_prompt(402, 17)]
GREEDY = [SamplingParams(max_tokens=24)] * 4
SAMPLED = [SamplingParams(24, temperature=0.8, seed=seed) for seed in range(4)]
TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 10}
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 96, "max_seq_len": 128}


@pytest.fixture(scope="module")
def config(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_config(models, tmp_path_factory.mktemp("head"))


def make_config(models: TinyModels, folder: Path) -> dict[str, Any]:
    return eagle(random_eagle3(models.hf("llama"), folder, range(10, 34)), "eagle3", **TREE)


@pytest.fixture(scope="module")
def expected(models: TinyModels) -> list[list[int]]:
    """The texts of backend aoti in float32."""
    options = {**LIMITS, "backend": "aoti", "device": "cuda"}
    with open_llm(models.folder("llama"), **options) as llm:
        return texts(llm)


def texts(llm: LLM) -> list[list[int]]:
    return [
        text
        for params in (GREEDY, SAMPLED)
        for text in tokens(llm.generate(PROMPTS, params, use_tqdm=False))
    ]


def build_here(models: TinyModels, config: Any, dtype: str, **options: Any) -> Path:
    """The test is skipped, with TensorRT's words, where it does not build for this GPU."""
    try:
        return build(
            models.folder("llama"),
            config,
            backend="tensorrt",
            dtype=dtype,
            tensorrt_config=TensorRTConfig(**options),
            **LIMITS,
        )
    except BuildError as error:
        capability = compute_capability()
        pytest.skip(f"{tensorrt_version()} for compute capability {capability}: {error}")


def sessions(llm: LLM) -> list[TensorRTSession]:
    """Those with caches, of the target and of the draft."""
    target: Any = inside.session(inside.target(llm))
    drafts: list[Any] = inside.drafts(llm)
    networks = [target._module, *(inside.rollout(draft)._module.model for draft in drafts)]
    return [inside.slot_session(network) for network in networks]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no_graphs"])
def test_the_texts_of_aoti(
    models: TinyModels, config: Any, expected: list[list[int]], graphs: bool
) -> None:
    folder = build_here(models, config, "float32")
    with LLM(folder, skip_tokenizer_init=True, cuda_graph_config=graphs) as llm:
        assert texts(llm) == expected
        assert llm.get_metrics()["num_accepted_tokens"] > 0
        assert inside.target(llm).caches.all[0].is_cuda
        assert_no_leak(llm)
        assert all((session.num_graphs > 0) == graphs for session in sessions(llm))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(models: TinyModels, config: Any, dtype: str) -> None:
    """Speculation, and graphs, give the text of plain decoding where nothing is close."""
    folder = build_here(models, config, dtype)
    with LLM(folder, False, skip_tokenizer_init=True, cuda_graph_config=False) as llm:
        plain = texts(llm)
    with LLM(folder, skip_tokenizer_init=True) as llm:
        found = texts(llm)
    same = sum(one == other for one, other in zip(plain, found, strict=True))
    assert same >= len(plain) // 2, (plain, found)


@pytest.mark.parametrize("option", ["strip_plan", "refit"])
def test_refitted_engines(
    models: TinyModels, config: Any, expected: list[list[int]], option: str
) -> None:
    folder = build_here(models, config, "float32", **{option: True})
    with LLM(folder, skip_tokenizer_init=True) as llm:
        assert texts(llm) == expected


def test_compiled_kernels_are_kept(models: TinyModels, config: Any, tmp_path: Path) -> None:
    """By TensorRT-RTX, which compiles when it runs."""
    if tensorrt_version().split()[0] != "tensorrt_rtx":
        pytest.skip(f"{tensorrt_version()} compiles nothing when it runs")
    folder = tmp_path / "engine"
    shutil.copytree(build_here(models, config, "float16"), folder)
    with LLM(folder, skip_tokenizer_init=True) as llm:
        first = texts(llm)
    assert (folder / "target.runtime_cache").stat().st_size > 0
    with LLM(folder, skip_tokenizer_init=True) as llm:
        assert texts(llm) == first
