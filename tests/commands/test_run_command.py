"""trtspec-run over tiny GGUF files: a text, a chat, and what becomes of llama.cpp's flags."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.commands import run, run_flags
from trtspec.commands.run_flags import FOREIGN, FOREIGN_SWITCHES
from trtspec.errors import ConfigError

from ..checkpoints.gguf_vocabularies import byte_level
from ..checkpoints.tiny_gguf import tiny

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
GREEDY = SamplingParams(max_tokens=6, temperature=0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a draft model."""
    root = tmp_path_factory.mktemp("run")
    found = []
    for name, kind in (("m.gguf", "Q4_0"), ("d.gguf", "Q8_0")):
        model = tiny(kind, 301)
        model.metadata |= byte_level() | {"tokenizer.chat_template": TEMPLATE}
        found.append(model.write(root / name))
    return found[0], found[1]


@pytest.fixture
def call(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the program; its exit status, output and errors."""

    def start(*flags: str, model: Path = files[0]) -> tuple[int, str, str]:
        status = run.main(["-m", str(model), "--backend", "eager", *flags])
        return status, *capsys.readouterr()

    return start


def says(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str]) -> None:
    rest = iter(lines)

    def read(prompt: str) -> str:
        line = next(rest, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr(builtins, "input", read)


def test_a_text_with_and_without_drafts(
    files: tuple[Path, Path], call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    with LLM(files[0], backend="eager") as llm:
        text = llm.generate("the\ncat", GREEDY).outputs[0].text
    short = ("-n", "6", "--temp", "0")
    status, out, err = call("-p", "the\\ncat", *short, "--spec-type", "none")
    assert (status, out) == (0, f"the\ncat{text}\n")
    assert "tokens/s" in err and "drafts accepted" not in err
    written = tmp_path / "prompt.txt"
    written.write_text("the\ncat\n")
    drafts = ("-md", str(files[1]), "--spec-type", "draft-simple", "--draft-max", "2")
    status, out, err = call("-f", str(written), *short, *drafts, "--no-display-prompt")
    assert (status, out) == (0, f"{text}\n")
    assert "tokens a step" in err and "drafts accepted" in err
    assert call("-p", "the\\ncat", *short, "--no-perf", "--log-disable")[1:] == (
        f"the\ncat{text}\n",
        "",
    )


def test_a_chat(
    files: tuple[Path, Path],
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = {"role": "system", "content": "be"}
    hi, again = ({"role": "user", "content": text} for text in ("hi", "so"))
    with LLM(files[0], backend="eager") as llm:
        first = llm.chat([system, hi], GREEDY).outputs[0].text
        answer = {"role": "assistant", "content": first}
        second = llm.chat([system, hi, answer, again], GREEDY).outputs[0].text
    says(monkeypatch, ["so", "", "/clear", "hi"])
    status, out, err = call("-p", "hi", "-sys", "be", "-n", "6", "--temp", "0", "-c", "120")
    assert (status, out) == (0, f"{first}\n{second}\n{first}\n\n")
    assert err.count("tokens/s") == 3
    status, out, _ = call("-sys", "be", "-p", "hi", "-st", "-n", "6", "--temp", "0")
    assert (status, out) == (0, f"{first}\n")


def test_a_chat_that_is_full_can_begin_again(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, ["hi", "x" * 200, "/clear", "hi", "/exit", "never read"])
    status, out, err = call("-c", "48", "-n", "4", "--temp", "0")
    assert status == 0 and "raise max_seq_len; /clear begins again" in err
    half = len(out) // 2
    assert out[:half] == out[half:], "the same answer twice, and nothing between"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--mlock"], "--mlock is refused: weights lie in"),
        (["-ctk", "q8_0"], "--cache-type-k q8_0 is refused: the cache has the engine's dtype"),
        (["--grammar-file", "g"], "--grammar-file g is refused: grammars"),
        (["--draft-p-min", "0.75"], "--draft-p-min 0.75 is refused: drafts end where"),
        (["--draft-min", "2"], "--draft-min 2 is refused"),
        (["-fa", "off"], "--flash-attn off is refused: there is one attention op"),
        (["-ngl", "20"], "--gpu-layers 20 would split the model.*give 0 or 99"),
        (["-ngl", "0", "-dev", "cuda"], "--gpu-layers 0 means cpu, but --device is cuda"),
        (["--spec-type", "none", "--draft-max", "3"], "leaves no use for a draft"),
        (["--spec-type", "draft-nothing"], "unknown speculative method 'nothing'"),
        (["-hf", "x/y"], "--hf-repo x/y is refused: give the repository's id as -m"),
        (["-mu", "http"], "--model-url http is refused"),
        (["-ngld", "99"], "--gpu-layers-draft 99 is refused: a draft lies where"),
        (["-nkvo"], "--no-kv-offload is refused: an engine runs on one device"),
        (["-p", "a", "-f", "b"], "--prompt and --file both"),
        (["-f", "nowhere"], "--file nowhere cannot be read"),
        (["-no-cnv"], "there is no prompt; give one with -p or -f"),
        (["-n", "0"], "--predict 0 must be at least 1"),
        (["-t", "0"], "--threads 0 must be at least 1"),
        (["--temp", "-1"], "temperature=-1.0 must be between"),
        (["-c", "-5"], "--ctx-size -5 must be"),
    ],
)
def test_refused(call: Callable[..., tuple[int, str, str]], flags: list[str], words: str) -> None:
    status, out, err = call(
        *(flags if "-f" in flags or "-no-cnv" in flags else ["-p", "a", *flags])
    )
    assert (status, out) == (1, "")
    assert err.startswith("trtspec-run: ")
    with pytest.raises(ConfigError, match=words):
        raise ConfigError(err.strip())


def parse(*flags: str) -> dict[str, object]:
    args = run.make_parser().parse_args(["-m", "m", *flags])
    run_flags.check_foreign(args)
    return {**run.llm_options(args), "speculation": run_flags.speculation(args)}


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("-ngl 0 -fa on --jinja -b 512 --draft-min 0 --draft-p-min 0", {"device": "cpu"}),
        ("-ngl 99", {"device": "cuda"}),
        ("--n-gpu-layers all", {"device": "cuda"}),
        ("-c 256 -ub 64", {"max_seq_len": 256, "max_num_tokens": 64}),
        ("-md d --spec-draft-n-max 3",
         {"speculation": {"method": "auto", "model": "d", "num_speculative_tokens": 3}}),
        ("-md d --spec-type draft-eagle3 --draft 3",
         {"speculation": {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}}),
        ("-md d --spec-type draft-simple",
         {"speculation": {"method": "draft_model", "model": "d"}}),
        ("--spec-type ngram-simple --draft-max 4",
         {"speculation": {"method": "ngram", "num_speculative_tokens": 4}}),
        ("--spec-type none", {"speculation": False}),
    ],
)  # fmt: skip
def test_what_flags_mean(flags: str, options: dict[str, object]) -> None:
    plain = {"dtype": "auto", "max_batch_size": 1, "speculation": {"method": "auto"}}
    assert parse(*flags.split()) == {**plain, **options}


def test_every_refusal_has_a_reason() -> None:
    for rule in FOREIGN.values():
        assert rule.reason
    for rule in FOREIGN_SWITCHES.values():
        assert rule.reason or rule.allows(True, {})


def test_sampling_and_threads(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's defaults; the number of threads is set before an engine is opened."""
    args = run.make_parser().parse_args(["-m", "m"])
    assert run.sampling(args) == SamplingParams(
        max_tokens=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05
    )
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    flags = ("-p", "a", "-n", "3", "-t", "3", "-s", "7", "-r", "zz", "--no-display-prompt")
    assert call(*flags)[:2] == call(*flags)[:2], "a seed repeats a text"
    assert given == [3, 3]


def test_prompts_unescape_like_llama_cpp() -> None:
    parse_args = run.make_parser().parse_args
    args = parse_args(["-m", "m"])
    assert run_flags.unescaped(r"a\nb\\n\tc\q", args) == "a\nb\\n\tc\\q"
    assert run_flags.unescaped(r"a\n", parse_args(["-m", "m", "--no-escape"])) == r"a\n"
