"""trtspec-build: the plan, a build, and errors in one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec import LLM
from trtspec.commands.build import main, make_parser, speculative_options
from trtspec.engine.folder import EngineConfig
from trtspec.speculative.eagle.options import Eagle3DecodingConfig, EagleDecodingConfig
from trtspec.speculative.medusa.options import MedusaDecodingConfig
from trtspec.speculative.mtp.options import MtpDecodingConfig
from trtspec.speculative.parallel.options import PardDecodingConfig, PEagleDecodingConfig

from ..e2e.helpers import PARAMS_40, TinyModels, chain, random_prompt

PROMPT = random_prompt(100, 12)


def arguments(models: TinyModels, output: Path, *more: str) -> list[str]:
    target, draft = models.folder("llama"), models.draft("llama")
    return [
        "--checkpoint_dir", str(target), "--output_dir", str(output), "--backend", "eager",
        "--dtype", "float32", "--max_batch_size", "4", "--max_seq_len", "96",
        "--max_num_tokens", "128", "--tokens_per_block", "8",
        "--speculative_decoding_mode", "draft_model", "--draft_checkpoint_dir", str(draft),
        "--max_draft_len", "3", *more,
    ]  # fmt: skip


def test_dry_run(models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(models, tmp_path / "engine", "--dry_run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == [
        "build    eager, float32, max_batch_size 4, max_seq_len 96, max_num_tokens 128",
        "drafts   draft_model: top-k 1, 3 steps, 4 rows verified",
    ]
    assert not any(line.startswith("built") for line in lines)
    assert os.listdir(tmp_path) == []


def test_build_and_load(
    models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "engine"
    flags = arguments(models, output, "--topk", "2", "--num_draft_tokens", "6")
    assert main(flags) == 0
    captured = capsys.readouterr()
    assert f"built    {output}" in captured.out
    assert "pack weights of the target" in captured.err  # progress
    engine = EngineConfig.read(output)
    assert (engine.build.tokens_per_block, engine.build.max_num_tokens) == (8, 128)
    contract = engine.drafts[0].speculation
    assert (contract.topk, contract.num_draft_tokens) == (2, 6)
    with LLM(output, skip_tokenizer_init=True) as llm:
        assert llm.generate(PROMPT, PARAMS_40).outputs[0].token_ids == models.greedy(
            "llama", PROMPT
        )
        assert llm.get_metrics()["num_draft_calls"] > 0
    assert main(flags) == 0  # up to date
    changed = arguments(models, output)
    assert main(changed) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*changed, "--force"]) == 0
    assert EngineConfig.read(output).drafts[0].speculation.topk == 1


def test_layers_to_extract(
    models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--checkpoint_dir", str(models.folder("llama")), "--output_dir", str(tmp_path / "e")]
    flags += ["--backend", "eager", "--speculative_decoding_mode", "extract_hidden_states"]
    assert main([*flags, "--eagle_aux_hidden_state_layer_ids", "2", "0", "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "states   outputs of layers 1, -1 are handed out to be written\n" in out
    assert "because  eagle_aux_hidden_state_layer_ids [2, 0] names layer inputs" in out
    assert main([*flags, "--capture_layers", "1", "-1"]) == 0
    assert EngineConfig.read(tmp_path / "e").extract_layers == (1, -1)
    assert main([*flags, "--capture_layers", "3", "--dry_run"]) == 1
    assert "the target has 2 layers" in capsys.readouterr().err
    assert main([*flags, "--dry_run"]) == 1
    assert "needs the layers" in capsys.readouterr().err
    assert main([*flags, "--capture_layers", "EAGLE3", "--dry_run"]) == 0
    assert "states   outputs of layers 0, 1, 2 are handed out" in capsys.readouterr().out
    assert main([*flags, "--capture_layers", "ngram", "--dry_run"]) == 1
    assert (
        "no drafts are trained for method 'ngram'; name one of eagle3, " in capsys.readouterr().err
    )


def test_a_hybrid(models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the method as JSON, in the flags' place."""
    drafters = [{"method": "suffix"}, chain(models.draft("llama"), 3)]
    config = json.dumps({"method": "hybrid", "drafters": drafters, "num_draft_tokens": 9})
    flags = ["--checkpoint_dir", str(models.folder("llama")), "--output_dir", str(tmp_path / "e")]
    flags += ["--backend", "eager", "--speculative_config", config]
    assert main(flags) == 0
    assert "hybrid   suffix, draft_model: 9 rows of all verified" in capsys.readouterr().out
    engine = EngineConfig.read(tmp_path / "e")
    assert engine.speculation is not None and engine.speculation.num_rows == 9
    for more, named in (
        (["--topk", "2"], "leave out topk"),
        (["--speculative_decoding_mode", "ngram"], "leave out --speculative_decoding_mode"),
        (["--speculative_config", "{"], "--speculative_config is not JSON"),
    ):
        assert main([*flags, *more]) == 1
        assert named in capsys.readouterr().err


def test_int8_weights(
    models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "engine"
    flags = arguments(models, output, "--use_weight_only")
    assert main([*flags, "--weight_only_precision", "int8", "--weight_group_size", "32"]) == 0
    captured = capsys.readouterr()
    assert "build    eager, float32 with int8 weights (a scale for each 32 input" in captured.out
    assert "int8 weights of the target: off by 0." in captured.err
    found = re.search(r"random tokens, KL divergence (\S+) .* token at (\S+)%", captured.err)
    assert found and 0 < float(found[1]) < 0.1 and 80 < float(found[2]) <= 100
    assert "int8 weights of the draft: off by 0." in captured.err
    build = EngineConfig.read(output).build
    assert (build.weight_dtype, build.weight_group_size) == ("int8", 32)
    assert main([*flags, "--weight_group_size", "64"]) == 1  # another engine
    assert "is not this engine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--weight_only_precision", "int8"], "without --use_weight_only"),
        (["--use_weight_only", "--weight_only_precision", "int5"], "int5 is not supported"),
        (["--use_weight_only", "--weight_dtype", "float32"], "but --weight_dtype float32"),
        (["--weight_group_size", "64"], "without weight_dtype int8"),
    ],
)
def test_flags_of_weights_that_contradict(
    models: TinyModels,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    assert main(arguments(models, tmp_path / "engine", "--dry_run", *more)) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "names",
    [
        ("--draft_checkpoint_dir", "--max_draft_len", "--topk"),
        ("--speculative_model_dir", "--num_steps", "--eagle_topk"),
        ("--draft_checkpoint_dir", "--max_draft_len", "--dynamic_tree_max_topK"),
    ],
)
def test_flags_of_a_dynamic_tree(names: tuple[str, str, str]) -> None:
    model, depth, topk = names
    flags = ["--checkpoint_dir", "t", "--output_dir", "e", "--speculative_decoding_mode", "EAGLE3"]
    shape = [model, "d", depth, "5", topk, "4", "--num_draft_tokens", "24"]
    assert speculative_options(make_parser().parse_args([*flags, *shape])) == Eagle3DecodingConfig(
        speculative_model="d", max_draft_len=5, topk=4, num_draft_tokens=24
    )


def test_flags_of_a_static_tree() -> None:
    flags = ["--checkpoint_dir", "t", "--output_dir", "e", "--speculative_decoding_mode", "eagle"]
    more = ["--draft_checkpoint_dir", "d", "--eagle_choices", "[[0], [1], [0, 0]]"]
    cut = ["--speculative_token_map", "freq.pt"]
    assert speculative_options(make_parser().parse_args([*flags, *more, *cut])) == (
        EagleDecodingConfig(
            speculative_model="d",
            eagle_choices=((0,), (1,), (0, 0)),
            speculative_token_map="freq.pt",
        )
    )


def test_flags_of_medusa() -> None:
    flags = ["--checkpoint_dir", "t", "--output_dir", "e", "--speculative_decoding_mode", "medusa"]
    more = ["--medusa_model_dir", "d", "--num_medusa_heads", "4", "--num_draft_tokens", "64"]
    assert speculative_options(make_parser().parse_args([*flags, *more])) == MedusaDecodingConfig(
        speculative_model="d", num_medusa_heads=4, num_draft_tokens=64
    )
    choices = ["--draft_checkpoint_dir", "d", "--medusa_choices", "[[0], [1], [0, 0]]"]
    assert speculative_options(make_parser().parse_args([*flags, *choices])) == (
        MedusaDecodingConfig(speculative_model="d", medusa_choices=((0,), (1,), (0, 0)))
    )


def test_flags_of_mtp() -> None:
    """No draft: it is in the target's checkpoint."""
    flags = ["--checkpoint_dir", "t", "--output_dir", "e", "--speculative_decoding_mode", "MTP"]
    options = speculative_options(make_parser().parse_args([*flags, "--max_draft_len", "3"]))
    assert options == MtpDecodingConfig(max_draft_len=3)
    for flag, value in (("--use_mtp_vanilla", True), ("--no-use_mtp_vanilla", False)):
        options = speculative_options(make_parser().parse_args([*flags, "--num_steps", "2", flag]))
        assert options == MtpDecodingConfig(max_draft_len=2, use_mtp_vanilla=value)


def test_flags_of_parallel_drafts() -> None:
    flags = ["--checkpoint_dir", "t", "--output_dir", "e", "--draft_checkpoint_dir", "d"]
    shape = ["--max_draft_len", "8", "--mask_token_id", "5"]
    for mode, cls in (("PARD", PardDecodingConfig), ("p-eagle", PEagleDecodingConfig)):
        more = ["--speculative_decoding_mode", mode, *shape]
        config = speculative_options(make_parser().parse_args([*flags, *more]))
        assert config == cls(speculative_model="d", max_draft_len=8, mask_token_id=5)


def test_ngram_needs_no_engine_of_its_own(models: TinyModels, tmp_path: Path) -> None:
    common = ["--checkpoint_dir", str(models.folder("llama")), "--backend", "eager"]
    mode = ["--speculative_decoding_mode", "NGRAM", "--max_draft_len", "5"]
    assert main([*common, *mode, "--output_dir", str(tmp_path / "engine")]) == 0
    assert EngineConfig.read(tmp_path / "engine").drafts == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--max_seq_len", "1000"], "max_seq_len=1000 exceeds the model's max_position"),
        (["--dtype", "fp8"], "dtype 'fp8' is not supported"),
        (["--max_batch_size", "0"], "max_batch_size=0 must be between"),
        (["--checkpoint_dir", "nowhere"], "no model 'nowhere'"),
        (["--draft_checkpoint_dir", "nowhere"], "no model 'nowhere'"),
        (["--speculative_decoding_mode", "hydra"], "'hydra' is not available"),
        (["--speculative_decoding_mode", "ngram"], "refused: prompt lookup has no draft model"),
        (["--topk", "2", "--num_draft_tokens", "99"], "99 - 1 = 98 > 2"),
        (["--max_draft_len", "0"], "max_draft_len=0 must be at least 1"),
        (["--eagle_choices", "[[0]]"], "static trees belong to the methods eagle, eagle3"),
        (["--speculative_decoding_mode", "eagle3", "--eagle_choices", "[[0,0]]"],
         "path [0, 0] has no parent: add [0]"),
        (["--speculative_decoding_mode", "eagle", "--topk", "2", "--eagle_choices", "[[0]]"],
         "max_draft_len=3 was given, but eagle_choices make a tree of max_draft_len=1"),
        (["--output_dir", "/proc/engine"], "cannot be written"),
    ],
)  # fmt: skip
def test_errors(
    models: TinyModels,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    words: str,
) -> None:
    """One line that says what was wrong; nothing is left."""
    output = tmp_path / "engine"
    assert main(arguments(models, output, *more)) == 1
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("trtspec-build: "))
    assert words in line
    assert os.listdir(tmp_path) == []


def test_drafts_without_a_mode(
    models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--checkpoint_dir", str(models.folder("llama")), "--output_dir", str(tmp_path / "e")]
    assert main([*flags, "--max_draft_len", "3"]) == 1
    assert "max_draft_len given without --speculative_decoding_mode" in capsys.readouterr().err


def test_truncated_checkpoint(
    models: TinyModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(shutil.copytree(models.folder("llama"), tmp_path / "broken"))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert main(arguments(models, tmp_path / "e", "--checkpoint_dir", str(broken))) == 1
    assert "model.safetensors is truncated" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["broken"]


@pytest.mark.slow
def test_as_a_program(tmp_path: Path) -> None:
    """Without a traceback, and with argparse's own exit code for what it does not know."""
    program = [sys.executable, "-m", "trtspec.commands.build", "--output_dir", str(tmp_path)]
    wrong = subprocess.run(
        [*program, "--checkpoint_dir", "nowhere"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("trtspec-build: no model 'nowhere'")
    assert wrong.stderr.count("\n") == 1


def test_options_of_tensorrt(models: TinyModels, capsys: pytest.CaptureFixture[str]) -> None:
    flags = arguments(models, Path("engine"), "--strip_plan", "--refit", "--builder_opt", "2")
    assert main(flags) == 1
    said = capsys.readouterr().err
    assert "they need backend 'tensorrt'" in said
    for option in ("strip_plan=True", "refit=True", "builder_optimization_level=2"):
        assert option in said
