"""The quickstart program: both runs, its report, and its flags."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ..e2e.helpers import TinyModels
from ..e2e.tiny_tokenizer import save_bytes

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "quickstart_advanced.py"


@pytest.fixture(scope="module")
def folder(models: TinyModels) -> Path:
    torch.manual_seed(7)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2}
    config = LlamaConfig(vocab_size=300, **sizes, **heads, eos_token_id=0)
    path = models.save(LlamaForCausalLM(config), "quickstart")
    save_bytes(path, 300)
    return path


@pytest.fixture
def quickstart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run its main with flags: exit code, output, errors."""
    spec = importlib.util.spec_from_file_location("quickstart_advanced", PROGRAM)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclass looks itself up
    spec.loader.exec_module(module)

    def run(*flags: str, model_dir: Path = folder) -> tuple[int, str, str]:
        common = ["--model_dir", str(model_dir), "--backend", "eager", "--dtype", "float32"]
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *common, *flags])
        code = module.main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def check_report(out: str, method: str, num_prompts: int, num_samples: int = 1) -> None:
    figures = r"acceptance length \d+\.\d\d, acceptance rate \d\.\d\d, steps \d+, text identical"
    assert len(re.findall(r"^\[\d\] Prompt: ", out, re.M)) == num_prompts * num_samples
    for name in ("baseline", method):
        assert len(re.findall(rf"^ +{name} +{figures}$", out, re.M)) == num_prompts * num_samples
        assert re.search(rf"^{name} +[\d.]+ tokens/s +step [\d.]+ ms", out, re.M)
    assert re.search(r"^speed-up +[\d.]+ x$", out, re.M)
    assert out.splitlines()[-1].split() == ["texts", "identical"]


def test_ngram_is_the_default_without_a_draft(
    quickstart: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = quickstart("--max_matching_ngram_size", "3", "--max_tokens", "30")
    assert code == 0
    check_report(out, "ngram", num_prompts=3)


def test_draft_target(folder: Path, quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = quickstart(
        "--draft_model_dir", str(folder), "--spec_decode_algo", "DRAFT_TARGET",
        "--spec_decode_max_draft_len", "4", "--prompt", "the cat", "a hat", "--temperature", "0.8",
        "--n", "2", "--logprobs", "--max_tokens", "20", "--disable_kv_cache_reuse",
    )  # fmt: skip
    assert code == 0
    check_report(out, "draft_model", num_prompts=2, num_samples=2)
    assert "acceptance rate 1.00" in out and "mean logprob -" in out


def test_more_flags(folder: Path, quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = quickstart(
        "--draft_model_dir", str(folder), "--dynamic_tree_max_topK", "3", "--num_draft_tokens", "8",
        "--top_k", "20", "--top_p", "0.9", "--temperature", "0.7", "--seed", "5",
        "--max_batch_size", "2", "--max_seq_len", "128", "--max_num_tokens", "64",
        "--kv_cache_fraction", "0.1", "--apply_chat_template", "--prompt", "the cat",
    )  # fmt: skip
    assert code == 0
    check_report(out.replace("Prompt: None", "Prompt: "), "draft_model", num_prompts=1)


def test_without_speculation(quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = quickstart("--spec_decode_algo", "none", "--max_tokens", "5")
    assert code == 0
    assert "baseline" in out and "speed-up" not in out


def test_an_unknown_algorithm_is_an_error(quickstart: Callable[..., tuple[int, str, str]]) -> None:
    with pytest.raises(SystemExit) as error:
        quickstart("--spec_decode_algo", "EAGLE9")
    assert "'EAGLE9' is unknown; choose one of NONE, NGRAM, DRAFT_TARGET" in str(error.value)


def test_errors_of_the_library_are_one_line(
    models: TinyModels, quickstart: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = quickstart("--max_seq_len", "9999")
    assert code == 1
    assert "quickstart: max_seq_len=9999 exceeds" in err
    code, _, err = quickstart(model_dir=models.folder("llama"))
    assert code == 1
    assert "holds no tokenizer" in err
    with pytest.raises(SystemExit, match="needs --draft_model_dir"):
        quickstart("--spec_decode_algo", "DRAFT_TARGET")
