"""The device option of LLM, for checkpoints and for engine folders."""

from __future__ import annotations

import pytest

from trtspec import LLM, CudaGraphConfig, build
from trtspec.errors import ConfigError

from ..e2e.helpers import TinyModels, open_llm


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def test_a_checkpoint(models: TinyModels) -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda' was asked for, but torch .* has no CUDA"):
        open_llm(models.folder("llama"), device="cuda")
    for device in ("auto", "cpu", None):
        with open_llm(models.folder("llama"), device=device) as llm:
            assert llm.config.build.device == "cpu"


def test_an_engine_folder(models: TinyModels) -> None:
    folder = build(models.folder("llama"), backend="eager", dtype="float32")
    with pytest.raises(ConfigError, match=r"device='cuda' was asked for, .* built with 'cpu'"):
        LLM(folder, skip_tokenizer_init=True, device="cuda")
    for device in ("auto", "cpu"):
        LLM(folder, skip_tokenizer_init=True, device=device).shutdown()


def test_graph_options(models: TinyModels) -> None:
    for wrong in ({"batch_sizes": [0]}, {"padding": True}, "on"):
        with pytest.raises(ConfigError, match=r"cuda_graph_config|CudaGraphConfig"):
            open_llm(models.folder("llama"), cuda_graph_config=wrong)
    open_llm(models.folder("llama"), cuda_graph_config=CudaGraphConfig((1, 3))).shutdown()
