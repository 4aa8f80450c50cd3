"""Bad input of the benchmark program: one line that names what is wrong, and an exit status."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from .program import Program, write_samples

pytestmark = pytest.mark.slow

NORM = "norm.weight"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "samples.json", [([5, 6, 7], 4)])


def flags(engine: Path, data: Path, *more: Any) -> list[Any]:
    return ["--engine_dir", engine, "--dataset", data, *more]


USAGE: list[tuple[tuple[Any, ...], tuple[str, ...]]] = [
    (("--max_batchsize", 2), ("--max_batchsize", "did you mean --max_batch_size")),
    (("--quantum", 2), ("unknown flag --quantum", "--help")),
    (("samples.json",), ("samples.json", "--")),
    (("--warm_up", 1, "--warm-up=2"), ("--warm_up", "twice")),
    (("--warm_up",), ("--warm_up needs a value",)),
    (("--warm_up", "two"), ("--warm_up two", "integer")),
    (("--warm_up", -1), ("--warm_up -1", "at least 0")),
    (("--max_num_samples", 0), ("--max_num_samples 0", "at least 1")),
    (("--max_num_samples", 2**64), ("--max_num_samples", "integer of 64 bits")),
    (("--enable_kv_cache_reuse=maybe",), ("maybe", "true or false")),
    (("--request_rate", 2, "--concurrency", 2), ("--request_rate", "--concurrency", "exclude")),
    (("--request_rate", "nan"), ("--request_rate nan",)),
    (("--request_rate", 0), ("--request_rate 0", "above 0")),
    (("--enable_exp_delays",), ("--enable_exp_delays", "--request_rate")),
    (("--temperature", -1), ("temperature=-1", "0")),
    (("--top_p", 1.5), ("top_p=1.5", "1")),
    (("--eos_id", "1,x"), ("--eos_id 1,x", "integers")),
    (("--eos_id", "-2"), ("--eos_id -2", "-1")),
    (("--kv_cache_free_memory_fraction", 1.5), ("1.5", "at most 1")),
    (("--speculative", "none", "--max_draft_len", 2), ("--max_draft_len", "--speculative none")),
    (("--prompt_lookup_max", 3), ("--prompt_lookup_max", "--speculative ngram")),
]


# What Python has alone: by its name, why, and what to do instead.
ELSEWHERE: list[tuple[tuple[Any, ...], tuple[str, ...]]] = [
    ((f"--{name}", 1), (f"--{name} is Python's only", *remedy))
    for name, *remedy in (
        ("adaptive", "controller", "--max_draft_len"),
        ("stop", "tokenizer", "--eos_id"),
        ("drafters", "a hybrid", "--speculative"),
        ("simulate_acceptance", "leave it out"),
        ("lossy_typical_acceptance", "lossless"),
        ("bad_words", "tokenizer", "--bad_words_ids"),
        ("structured_outputs", "grammars", "trtspec.LLM"),
        ("n", "repeat it in the data set"),
        ("async_scheduling", "leave it out"),
    )
]
VALUES: list[tuple[tuple[Any, ...], tuple[str, ...]]] = [
    (("--min_p", 2), ("min_p=2", "1")),
    (("--repetition_penalty", 0), ("repetition_penalty=0", "1e-06")),
    (("--presence_penalty", 3), ("presence_penalty=3", "2")),
    (("--frequency_penalty", "-2.5"), ("frequency_penalty=-2.5", "-2")),
    (("--logit_bias", "5"), ("--logit_bias 5", "5:-1.5")),
    (("--logit_bias", "5:1,5:2"), ("names 5 twice",)),
    (("--bad_words_ids", "5;;6"), ("--bad_words_ids 5;;6", "lists of integers")),
    (("--logprobs", 21), ("--logprobs 21", "at most 20")),
    (("--suffix_decoding_tree",), ("--suffix_decoding_tree", "--speculative suffix")),
    (
        ("--speculative", "suffix", "--suffix_decoding_max_tree_depth", 1),
        ("--suffix_decoding_max_tree_depth 1", "at least 2"),
    ),
    (
        ("--speculative", "suffix", "--suffix_decoding_max_spec_factor", -1),
        ("suffix_decoding_max_spec_factor=-1", "0 or more"),
    ),
    (
        ("--speculative", "suffix", "--suffix_decoding_min_token_prob", 2),
        ("suffix_decoding_min_token_prob=2", "between 0 and 1"),
    ),
]


def some(cases: list[Any], count: int) -> list[Any]:
    """Those behind the first ones for the full product: each is a process."""
    rest = [pytest.param(*case, marks=pytest.mark.matrix) for case in cases[count:]]
    return [*cases[:count], *rest]


@pytest.mark.parametrize(
    ("given", "named"),
    [*USAGE, *some(VALUES, 2), *some(ELSEWHERE, 2)],
    ids=lambda value: str(value[:2]),
)
def test_usage(
    program: Program, data: Path, given: tuple[Any, ...], named: tuple[str, ...]
) -> None:
    status, line = program.refuse(*flags(Path("no-engine"), data, *given))
    assert status == 2
    assert all(name in line for name in named), line


def test_missing_flags(program: Program, data: Path) -> None:
    assert program.refuse() == (2, "trtspec_benchmark: --engine_dir is missing; see --help")
    status, line = program.refuse("--engine_dir", "somewhere")
    assert status == 2 and "--dataset" in line
    done = program.call("--help")
    assert done.returncode == 0 and not done.stderr
    assert all(len(text) <= 100 for text in done.stdout.splitlines())


MISFITS: list[tuple[tuple[Any, ...], tuple[str, ...]]] = [
    (("--max_draft_len", 9), ("max_draft_len=9", "at most 4")),
    (("--speculative", "eagle3"), ("eagle3", "built for draft_model", "ngram, suffix or none")),
    (("--speculative", "ngram", "--max_draft_len", 64), ("max_draft_len=64", "65 rows", "64")),
    (("--speculative", "ngram", "--prompt_lookup_max", 2, "--prompt_lookup_min", 3), ("3 to 2",)),
    (
        ("--speculative", "suffix", "--suffix_decoding_max_tree_depth", 70),
        ("max_draft_len=70 needs 70 rows", "64"),
    ),
    (("--logit_bias", "99999:1"), ("logit_bias names token id 99999", "vocabulary")),
    (("--max_batch_size", 5), ("max_batch_size=5", "4")),
    (("--max_seq_len", 257), ("max_seq_len=257", "256")),
    (("--max_num_tokens", 3), ("max_num_tokens=3", "max_batch_size=4")),
    (("--max_seq_len", 6), ("samples.json", "line 1", "3 input tokens + 4", "max_seq_len=6")),
    (("--kv_cache_max_tokens", 15), ("15 tokens", "one block of 16")),
    (("--output_csv", "no/such/folder.csv"), ("no/such/folder.csv", "cannot be written")),
]


@pytest.mark.parametrize(("given", "named"), MISFITS, ids=lambda value: str(value[0]))
def test_does_not_fit_the_engine(
    program: Program,
    chain_engine: Path,
    data: Path,
    given: tuple[Any, ...],
    named: tuple[str, ...],
) -> None:
    status, line = program.refuse(*flags(chain_engine, data, *given))
    assert status == 1
    assert all(name in line for name in named), line


GOOD = '{"input_ids": [1, 2], "output_len": 3}\n'
DATASETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "not_json.jsonl": (GOOD + "\n{'input_ids': [1]}\n", ("line 3", "column 2")),
    "not_json.json": ('{"samples": [\n' + GOOD + "1", ("line 3",)),
    "no_ids.jsonl": (GOOD + '{"output_len": 3}', ("line 2", '"input_ids"')),
    "no_length.jsonl": ('{"input_ids": [1]}', ("line 1", '"output_len"')),
    "no_token.jsonl": ('{"input_ids": [], "output_len": 3}', ("line 1", "at least one")),
    "text.jsonl": ('{"input_ids": "abc", "output_len": 3}', ("line 1", "an array", "a string")),
    "fraction.jsonl": ('{"input_ids": [1.5], "output_len": 3}', ("line 1", "column 16", "integer")),
    "large.jsonl": (GOOD + '{"input_ids": [1, 99999], "output_len": 3}', ("line 2", "token 99999")),
    "negative.jsonl": ('{"input_ids": [-1], "output_len": 3}', ("token -1", "vocabulary")),
    "none.jsonl": ('{"input_ids": [1], "output_len": 0}', ("line 1", "0 is not between 1")),
    "long.jsonl": (
        GOOD * 2 + '{"input_ids": [1, 2], "output_len": 255}',
        ("line 3", "2 input tokens + 255 output tokens", "max_seq_len=256"),
    ),
    "empty.jsonl": ("\n", ("holds no sample",)),
    "empty.json": ('{"samples": []}', ("holds no sample",)),
    "other.json": ("{}", ('"samples"',)),
    "list.json": ("[1]", ("an object", "an array")),
}


@pytest.mark.parametrize("name", DATASETS)
def test_bad_dataset(program: Program, chain_engine: Path, tmp_path: Path, name: str) -> None:
    text, named = DATASETS[name]
    path = tmp_path / name
    path.write_text(text)
    status, line = program.refuse(*flags(chain_engine, path))
    assert status == 1
    assert all(part in line for part in (str(path), *named)), line


def test_no_dataset(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        status, line = program.refuse(*flags(chain_engine, path))
        assert status == 1 and str(path) in line and "cannot be read" in line


def edited(**values: Any) -> Callable[[Path], None]:
    """Changes members of config.json; a path with "__" between its keys."""

    def edit(folder: Path) -> None:
        file = folder / "config.json"
        config = json.loads(file.read_text())
        for path, value in values.items():
            *outer, last = path.split("__")
            place = config
            for key in outer:
                place = place[int(key)] if isinstance(place, list) else place[key]
            if value is Ellipsis:
                del place[last]
            else:
                place[last] = value
        file.write_text(json.dumps(config, indent=2))

    return edit


def cut(name: str, size: int) -> Callable[[Path], None]:
    """Leaves the first bytes of a file, or for a negative size all but the last ones."""

    def edit(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:size])

    return edit


def removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def changed(name: str, change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    """Changes the tensors of a weight file."""

    def edit(folder: Path) -> None:
        weights = load_file(folder / name)
        change(weights)
        save_file({key: weight.clone() for key, weight in weights.items()}, folder / name)

    return edit


def broken_text(folder: Path) -> None:
    (folder / "config.json").write_text('{"format_version": 10,\n "target": }')


STATE = {"name": "sum", "heads": 1, "size": 1, "dtype": "float32", "kind": "slot"}
DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "older": (edited(format_version=1), ("engine format 1", "reads 10", "trtspec-build")),
    "no_version": (edited(format_version=...), ("not an engine folder",)),
    "no_config": (removed("config.json"), ("config.json cannot be read",)),
    "text": (broken_text, ("config.json", "line 2", "column 12")),
    "no_build": (edited(build=...), ("config.json", '"build"', "trtspec-build")),
    "size": (
        edited(facts__target__layers=[]),
        ("config.json", "0 is not between 1", "trtspec-build"),
    ),
    "buffer": (
        edited(facts__target__caches=[{"window": 0, "buffers": [{**STATE, "kind": "pages"}]}]),
        ("config.json", "is not one of paged, slot, step", "trtspec-build"),
    ),
    "states": (
        edited(
            facts__draft__caches=[{"window": 0, "buffers": [STATE]}],
            facts__draft__rollout__by_pass=False,
        ),
        ("config.json", "draft whose layers keep states is rolled out pass by pass"),
    ),
    "type": (edited(build__max_seq_len="long"), ("config.json", "an integer", "a string")),
    "backend": (edited(build__backend="eager"), ("'eager'", "Python only", "--backend aoti")),
    "hybrid": (
        edited(speculation={"method": "hybrid", "drafters": []}),
        ("config.json", "a hybrid, of several drafters", "Python only", "trtspec.LLM"),
    ),
    "ranks": (
        edited(build__tensor_parallel_size=2),
        ("config.json", "split over ranks", "Python only", "trtspec.LLM"),
    ),
    "adapters": (
        edited(build__enable_lora=True),
        ("config.json", "room for adapters", "Python only", "trtspec.LLM"),
    ),
    "torch": (edited(environment__torch="1.0"), ("torch 1.0 (here 2.", "trtspec-build")),
    "isa": (edited(environment__vector_isa="X"), ("vector_isa X", "trtspec-build")),
    "instructions": (
        edited(environment__instructions="pni avx9_x"),
        ("instructions avx9_x (here missing)", "trtspec-build"),
    ),
    "ops": (edited(environment__ops=99), ("ops 99 (here ", "trtspec-build")),
    "python_only": (
        edited(facts__draft__rollout=None),
        ("config.json", "a draft for 'draft_model' runs in Python only", "trtspec.LLM"),
    ),
    "draft_window": (
        edited(drafts__0__speculation__window={"size": 8, "sinks": 4}),
        ("config.json", "rows are let go (draft_window) runs in Python only", "trtspec.LLM"),
    ),
    "lookahead": (edited(facts__draft__rollout__lookahead=1), ("1 is not between 0 and 0",)),
    "half_draft": (edited(drafts__0__speculation=...), ("config.json", '"speculation"')),
    "draft_elsewhere": (edited(drafts__0__folder="draft_2"), ("'draft'", "the folder")),
    "weights": (cut("target/weights.safetensors", -1), ("weights.safetensors", "truncated")),
    "header": (cut("draft/weights.safetensors", 100), ("draft/weights.safetensors", "header")),
    "no_weights": (
        removed("target/weights.safetensors"),
        ("weights.safetensors", "cannot be read: No such file"),
    ),
    "shape": (
        changed("target/weights.safetensors", lambda w: w.update({NORM: w[NORM][:5]})),
        ("target/weights.safetensors", f"'{NORM}' is F32 [5], it was built with F32 [", "rebuild"),
    ),
    "same_bytes": (
        changed("target/weights.safetensors", lambda w: w.update({NORM: w[NORM][None]})),
        (f"'{NORM}' is F32 [1, ", "it was built with F32 ["),
    ),
    "dtype": (
        changed("draft/weights.safetensors", lambda w: w.update({NORM: w[NORM].half()})),
        ("draft/weights.safetensors", f"'{NORM}' is F16 [", "it was built with F32 ["),
    ),
    "no_weight": (
        changed("draft/weights.safetensors", lambda w: w.pop(NORM)),
        (f"'{NORM}' is missing, it was built with F32 [",),
    ),
    "other_weight": (
        changed("target/weights.safetensors", lambda w: w.update(more=w[NORM])),
        ("'more' (F32 [", "has no use"),
    ),
    "no_model": (removed("draft/pass.pt2"), ("draft/pass.pt2 is missing", "trtspec-build")),
    "model": (cut("target/model.pt2", 5000), ("target/model.pt2 cannot be loaded",)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_engine(
    program: Program, chain_engine: Path, data: Path, tmp_path: Path, name: str
) -> None:
    damage, named = DAMAGE[name]
    folder = tmp_path / "engine"
    shutil.copytree(chain_engine, folder)
    damage(folder)
    status, line = program.refuse(*flags(folder, data))
    assert status == 1
    assert all(part in line for part in (str(folder), *named)), line


def test_exchanged_weights(
    program: Program, chain_engine: Path, data: Path, tmp_path: Path
) -> None:
    """Those of the draft where the target's should be."""
    folder = tmp_path / "engine"
    shutil.copytree(chain_engine, folder)
    shutil.copy(folder / "draft/weights.safetensors", folder / "target/weights.safetensors")
    status, line = program.refuse(*flags(folder, data))
    assert status == 1 and "target/weights.safetensors does not fit its engine" in line


def test_engine_without_a_draft(
    program: Program, chain_engine: Path, data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "engine"
    shutil.copytree(chain_engine, folder)
    edited(drafts=[])(folder)
    for more, named in (
        (("--speculative", "draft_model"), ("draft_model needs a draft", "without one")),
        (("--max_draft_len", 2), ("--max_draft_len 2", "--speculative")),
    ):
        status, line = program.refuse(*flags(folder, data, *more))
        assert status == 1 and str(folder) in line
        assert all(part in line for part in named), line
    assert program.call(*flags(folder, data)).returncode == 0
