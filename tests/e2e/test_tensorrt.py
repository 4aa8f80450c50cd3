"""An engine folder of backend tensorrt, over the fake runtime, gives the texts of backend onnx."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import trtspec.backends.tensorrt.backend as opening
from trtspec import LLM, build
from trtspec.backends.slots import networks, padding
from trtspec.backends.staging import Staging
from trtspec.backends.tensorrt.session import TensorRTSession
from trtspec.errors import ConfigError
from trtspec.executor.engines import counted_engine

from .. import inside
from .eagle_heads import eagle, random_eagle3
from .helpers import GREEDY_24, SAMPLED_24, TinyModels, assert_no_leak, eight_prompts, tokens

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from ..backends.fake_tensorrt import as_tensorrt, installed

pytestmark = pytest.mark.slow

PROMPTS = eight_prompts(560)
TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 10}
LIMITS: dict[str, Any] = {"max_batch_size": 8, "max_seq_len": 128, "max_num_tokens": 80}


@pytest.fixture(scope="module")
def folder(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an EAGLE-3 tree that is often right."""
    texts = [models.greedy("llama", prompt, 24) for prompt in PROMPTS]
    common = sorted({token for text in texts for token in text})
    head = random_eagle3(models.hf("llama"), tmp_path_factory.mktemp("head"), common)
    config = eagle(head, "eagle3", **TREE)
    return build(models.folder("llama"), config, backend="onnx", dtype="float32", **LIMITS)


def run(
    folder: Path, find: Callable[[LLM], Any] = lambda llm: None, **options: Any
) -> tuple[list[list[int]], list[int], Any]:
    """Texts, how many nodes were drafted and accepted, and what ``find`` finds in the end."""
    with LLM(folder, skip_tokenizer_init=True, **options) as llm:
        texts = tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False))
        texts += tokens(llm.generate(PROMPTS, SAMPLED_24, use_tqdm=False))
        texts += tokens([llm.generate(PROMPTS[0], SAMPLED_24[0])])
        metrics = llm.get_metrics()
        assert_no_leak(llm)
        found = find(llm)
    return texts, [metrics["num_draft_tokens"], metrics["num_accepted_tokens"]], found


def sessions(llm: LLM) -> list[TensorRTSession]:
    """Those with caches, of the target and of the draft."""
    target: Any = inside.session(inside.target(llm))
    draft: Any = inside.drafts(llm)[0]
    networks = [target._module, inside.rollout(draft)._module.model]
    return [network._graph._session for network in networks]


def judged_session(llm: LLM) -> Any:
    """The target's, beside kernels that verify."""
    target: Any = inside.session(inside.target(llm))
    return target._module._session._session


def views(session: TensorRTSession) -> set[int]:
    """How many positions the masks of captured calls have."""
    return {shapes[3][3] for shapes, _ in session._captured}


@pytest.fixture
def copy(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With views of the caches from a few positions on."""
    monkeypatch.setattr(padding, "_SHORTEST", 16)
    copy = tmp_path / "engine"
    shutil.copytree(folder, copy)
    as_tensorrt(copy)
    return copy


def test_same_texts(folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With graphs and without; both sessions capture steps, and few sizes of them. Inputs are
    copied as they would be to a device."""
    expected, figures, _ = run(folder)
    staging = partial(Staging, always=True)
    monkeypatch.setattr(networks, "Staging", staging)
    monkeypatch.setattr(counted_engine, "Staging", staging)
    monkeypatch.setattr(opening, "register_cuda_ops", lambda: False)  # kernels verify below
    for graphs in (True, None):
        with installed() as fake:
            texts, found, opened = run(copy, sessions, cuda_graph_config=graphs)
        assert texts == expected
        assert found == figures
        assert all(isinstance(session, TensorRTSession) for session in opened)
        assert all(views(session) > {32, 64} for session in opened if graphs)
        if graphs:
            assert all(1 < session.num_graphs < 30 for session in opened)
            assert fake.cuda.num_launches > 3 * sum(session.num_graphs for session in opened)
        else:
            assert fake.cuda.num_launches == 0


def test_kernels_beside_the_engine_judge(
    folder: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the kernels are the CPU's ops; the target's steps are captured as they are without."""
    expected, figures, _ = run(folder)
    monkeypatch.setattr(opening, "register_cuda_ops", lambda: True)
    for graphs in (True, None):
        with installed():
            texts, found, session = run(copy, judged_session, cuda_graph_config=graphs)
        assert texts == expected
        assert found == figures
        assert isinstance(session, TensorRTSession)
        assert (1 < session.num_graphs < 30) if graphs else session.num_graphs == 0
        assert not graphs or views(session) > {32, 64}


def test_options_that_the_folder_was_not_built_with(copy: Path) -> None:
    options = {"backend": "tensorrt", "tensorrt_config": {"strip_plan": True}}
    with installed(), pytest.raises(ConfigError, match=r"strip_plan=True.* built with .*=False"):
        LLM(copy, skip_tokenizer_init=True, **options)
