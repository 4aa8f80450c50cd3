"""What help, docs and `__all__` list is what there is: methods, backends, dtypes, devices."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import trtspec
from trtspec import LLM
from trtspec.backends.registry import backends
from trtspec.bench.runs.methods import read_methods
from trtspec.commands import bench, build, doctor, run, serve, train
from trtspec.config.build_config import DEVICES
from trtspec.config.model import DTYPES
from trtspec.engine.folder import FORMAT_VERSION
from trtspec.errors import ConfigError
from trtspec.formats.registry import activation_dtypes, weight_dtypes
from trtspec.speculative.options import parse_speculative_config
from trtspec.speculative.registry import method_names, methods

from ..e2e.helpers import TinyModels, chain, open_llm

ROOT = Path(__file__).resolve().parents[2]


def quickstart() -> argparse.ArgumentParser:
    path = ROOT / "examples" / "quickstart_advanced.py"
    spec = importlib.util.spec_from_file_location("quickstart_for_help", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    sys.path.insert(0, str(path.parent))  # as running it does
    spec.loader.exec_module(module)
    sys.path.remove(str(path.parent))
    del sys.modules[spec.name]
    parser: argparse.ArgumentParser = module.make_parser()
    return parser


def flags_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from flags_of(command)
        else:
            yield action


PARSERS: Mapping[str, Callable[[], argparse.ArgumentParser]] = {
    "build": build.make_parser,
    "bench": bench.make_parser,
    "serve": serve.make_parser,
    "run": run.make_parser,
    "doctor": doctor.make_parser,
    "train": train.make_parser,
    "quickstart": quickstart,
}
LISTS = {
    "backend": backends(),
    "device": DEVICES,
    "dtype": DTYPES,
    "weight_dtype": weight_dtypes(),
    "activation_dtype": activation_dtypes(),
    "method": method_names(),
    "speculative_decoding_mode": method_names(),
    "spec_type": method_names(),
    "spec_decode_algo": [name for name in method_names() if name != "hybrid"],
}
"""By flag, all that it may be; hybrids are no single word."""


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_]+", text.lower()))


@pytest.mark.parametrize("program", sorted(PARSERS.keys() - {"quickstart"}))
def test_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all that decides whether an engine folder fits."""
    with pytest.raises(SystemExit, match="0"):
        PARSERS[program]().parse_args(["--version"])
    said = f"trtspec {trtspec.__version__}, torch {torch.__version__}, engine format "
    assert capsys.readouterr().out == f"{said}{FORMAT_VERSION}\n"


@pytest.mark.parametrize("program", PARSERS)
def test_flags_list_all_that_they_take(program: str) -> None:
    found = 0
    for action in flags_of(PARSERS[program]()):
        names = {option.lstrip("-").replace("-", "_") for option in action.option_strings}
        for name in names & LISTS.keys():
            text = action.help or ""
            if "time its rollout" in text:  # a spelling with numbers
                continue
            found += 1
            assert set(LISTS[name]) <= words(text), (name, text)
    assert found >= (2 if program != "doctor" else 0)


@pytest.mark.parametrize("program", PARSERS)
def test_help_can_be_printed(program: str) -> None:
    assert "--" in PARSERS[program]().format_help()


def test_public_configs() -> None:
    configs = {method.options.__name__ for method in methods().values()}
    assert configs <= set(trtspec.__all__)
    for name in trtspec.__all__:
        assert getattr(trtspec, name) is not None
    source = Path(trtspec.__file__).read_text()
    block = source[source.index("if TYPE_CHECKING") : source.index("__all__")]
    assert set(trtspec.__all__) - {"__version__"} <= set(re.findall(r"\w+", block))


def rows(text: str, header: str) -> set[str]:
    """What the first cells of the table below such a header name."""
    table = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return {name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def test_tables_of_the_pages() -> None:
    front = (ROOT / "README.md").read_text()
    assert rows(front, "| method | what it needs") == set(methods())
    page = (ROOT / "trtspec" / "backends" / "README.md").read_text()
    assert rows(page, "| `--backend` |") == set(backends())


@pytest.mark.parametrize("key", ["method", "decoding_type", "speculative_algorithm"])
@pytest.mark.parametrize("word", ["none", "NONE", "None"])
def test_none_is_no_speculation(key: str, word: str) -> None:
    assert parse_speculative_config({key: word}) is None
    assert parse_speculative_config({key: word, "model": None}) is None
    with pytest.raises(ConfigError, match=r"none is no speculation, but topk was given"):
        parse_speculative_config({key: word, "topk": 2})


def test_none_beside_a_method_is_two() -> None:
    for other in ("ngram", "none "):
        with pytest.raises(ConfigError):
            parse_speculative_config({"method": "none", "decoding_type": other})


def test_none_in_a_hybrid_names_no_drafter() -> None:
    with pytest.raises(ConfigError, match=r"drafters\[1\] is None"):
        parse_speculative_config(
            {"method": "hybrid", "drafters": [{"method": "suffix"}, {"method": "none"}]}
        )


def test_none_as_the_programs_are_told() -> None:
    parse = build.make_parser().parse_args
    base = ["--checkpoint_dir", "t", "--output_dir", "o"]
    for flags in (
        ["--speculative_decoding_mode", "none"],
        ["--speculative_decoding_mode", "NONE"],
        ["--speculative_config", json.dumps({"method": "none"})],
    ):
        assert build.speculative_options(parse([*base, *flags])) is None
    with pytest.raises(ConfigError, match="max_draft_len was given"):
        build.speculative_options(
            parse([*base, "--speculative_decoding_mode", "none", "--max_draft_len", "4"])
        )
    for flags in (["--method", "none"], ["--speculative_config", '{"method": "none"}']):
        assert bench.speculation(bench.make_parser().parse_args(["acceptance", *flags])) is False
    for spelling in ("none", "NONE", '{"method": "none"}'):
        (method,) = read_methods([spelling], [])
        assert (method.name, method.config) == ("none", None)


def test_none_leaves_the_draft_of_an_engine_folder_unused(models: TinyModels) -> None:
    options: dict[str, Any] = {"backend": "eager", "dtype": "float32"}
    folder = trtspec.build(models.folder("llama"), chain(models.draft("llama"), 2), **options)
    with LLM(folder, skip_tokenizer_init=True) as llm:
        assert llm.speculation is not None
    with open_llm(folder, {"method": "none"}) as llm:
        assert llm.speculation is None
