"""--device of the programs: what reaches the engine, and what is said where there is no CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.commands import build, serve

from ..e2e.helpers import TinyModels


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def run_build(models: TinyModels, tmp_path: Path, *flags: str) -> int:
    source, output = str(models.folder("llama")), str(tmp_path / "engine")
    words = ["--checkpoint_dir", source, "--output_dir", output, "--dry_run", *flags]
    return build.main(words)


def test_build(models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_build(models, tmp_path, "--device", "cuda") == 1
    error = capsys.readouterr().err
    assert "trtspec-build: device 'cuda' was asked for, but torch" in error
    assert "has no CUDA" in error
    assert run_build(models, tmp_path, "--device", "tpu") == 1
    assert "device 'tpu' is unknown" in capsys.readouterr().err
    assert run_build(models, tmp_path, "--device", "auto") == 0
    assert "because  device cpu: torch finds no CUDA device" in capsys.readouterr().out


def test_serve() -> None:
    def options(*flags: str) -> dict[str, object]:
        return serve.llm_options(serve.make_parser().parse_args(["model", *flags]))

    plain = options()
    assert (plain["device"], plain["cuda_graph_config"]) == (None, None)
    assert plain["enforce_eager"] is False
    given = options("--device", "cuda", "--cuda-graph-config", '{"batch_sizes": [1, 2]}')
    assert (given["device"], given["cuda_graph_config"]) == ("cuda", {"batch_sizes": [1, 2]})
    assert options("--cuda-graph-config", "false")["cuda_graph_config"] is False
    with pytest.raises(ValueError, match="enforce_eager=True runs without CUDA graphs"):
        options("--enforce-eager", "--cuda-graph-config", "true")
    with pytest.raises(ValueError, match="device 'gpu' is unknown"):
        options("--device", "gpu")
