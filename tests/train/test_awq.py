"""Weights in 4 bits by AWQ: a copy of a checkpoint stands for the same network, the ModelOpt search
beats plain rounding, and what it is not made for is refused by name."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checkpoint_converters import Checkpoint, load_checkpoint, write_quantised
from trtspec import LLM, SamplingParams
from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.locate import CACHE_VARIABLE, assets_root
from trtspec.commands.build import main
from trtspec.config.quantised import QuantisedTensor
from trtspec.formats.registry import IN_PANELS
from trtspec.models.causal_lm import CausalLM
from trtspec.models.linear import Linear
from trtspec.train import calibration
from trtspec.train.awq import quantised_layers
from trtspec.train.calibration import given_windows, written_windows

from ..e2e.families import family_model
from ..e2e.helpers import TinyModels, ngram, random_prompt

TINY = assets_root() / "trtspec-tiny"
GROUP = 16
REFUSED = {
    "a mixer that is no plain attention": ("deepseek_v2", "deepseek_v3"),
    "per-layer embeddings": ("gemma4",),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(name: str, folder: Path) -> Path:
    """A tiny model of a family, whose inner layers groups divide."""
    family_model(name, intermediate_size=96).save_pretrained(folder)
    return folder


def inputs_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Of each linear layer of its decoder."""
    return {
        name: module.in_features
        for name, module in CausalLM(checkpoint.config, torch.float32).named_modules()
        if isinstance(module, Linear) and name.startswith("layers.")
    }


def divergence(folder: Path, exact: torch.Tensor, ids: torch.Tensor) -> float:
    ours = log_probabilities(in_floats(folder), ids)
    return float((exact.exp() * (exact - ours)).sum(-1).mean())


def in_floats(folder: Path) -> CausalLM:
    """The network of a checkpoint, quantised weights as the floats that they stand for."""
    checkpoint = load_checkpoint(folder)
    config = replace(checkpoint.config, storage=None)
    model = CausalLM(config, torch.float32, formats=IN_PANELS)
    model.load_weights(replace(checkpoint, config=config))
    return model


@pytest.mark.parametrize(
    "name",
    [
        *("gemma3", "phi3"),
        *(
            pytest.param(each, marks=pytest.mark.matrix)
            for each in ("smollm3", "olmo2", "granite", "glm4", "gemma2", "cohere", "starcoder2")
        ),
    ],
)
def test_a_copy_stands_for_the_same_network(tmp_path: Path, name: str) -> None:
    """Whatever the factors: they are in norms, in up, or beside the layer, and cancel out. Those of
    a whole group, powers of two, change no code, so that plain rounding is what remains."""
    folder = made(name, tmp_path / "floats")
    checkpoint = load_checkpoint(folder)
    inputs = inputs_of(checkpoint)
    noise = torch.Generator().manual_seed(0)
    ids = torch.tensor(random_prompt(3, 40))
    found = [log_probabilities(in_floats(folder), ids)]
    for most in (0, 2):
        factors = {
            layer: 2.0
            ** torch.randint(-most, most + 1, (size // GROUP,), generator=noise)
            .repeat_interleave(GROUP)
            .float()
            for layer, size in inputs.items()
        }
        copy = tmp_path / f"copy{most}"
        copy.mkdir()
        write_quantised(checkpoint, *quantised_layers(checkpoint, factors, GROUP), copy)
        stored = load_checkpoint(copy).config.storage
        assert stored is not None and stored.usual.bits == 4
        assert stored.usual.group_size == GROUP and stored.usual.scale_dtype == "float16"
        found.append(log_probabilities(in_floats(copy), ids))
    exact, rounded, arranged = found
    assert (exact - rounded).abs().max() > 1e-2
    torch.testing.assert_close(arranged, rounded, rtol=0, atol=2e-3)


def test_awq_beats_rounding(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt: pip install 'trtspec[train]'")
    text = tmp_path / "text.txt"
    text.write_text((Path(__file__).parents[2] / "examples" / "README.md").read_text())
    flags = ["--checkpoint_dir", str(TINY), "--weight_dtype", "int4", "--backend", "eager"]
    flags += ["--max_batch_size", "2", "--max_seq_len", "512"]
    flags += ["--quantize", "awq", "--calibration_text", str(text)]
    assert main([*flags, "--output_dir", str(tmp_path / "awq")]) == 0
    said = capsys.readouterr().err
    each = r"KL divergence (\S+) nats .*perplexity \S+ \(of floats \S+\); rounded to the nearest"
    found = re.search(each + r" they would be at KL divergence (\S+) nats", said)
    assert found and 0 < float(found[1]) < float(found[2])

    (copy,) = (cache / "quantised").iterdir()
    checkpoint = load_checkpoint(copy)
    weight = checkpoint.tensors["layers.0.attn.o.weight"]
    assert isinstance(weight, QuantisedTensor)
    factors = weight.input_scales
    assert factors is not None and factors.std() > 0.01
    norms = (load_checkpoint(each).tensors["layers.0.input_norm.weight"] for each in (copy, TINY))
    assert not torch.equal(*norms)
    (ids, *_) = given_windows(load_checkpoint(TINY), text)
    exact = log_probabilities(in_floats(TINY), ids)
    plain = tmp_path / "plain"
    plain.mkdir()
    original = load_checkpoint(TINY)
    ones = {name: torch.ones(size) for name, size in inputs_of(original).items()}
    write_quantised(original, *quantised_layers(original, ones, 32), plain)
    assert divergence(copy, exact, ids) < divergence(plain, exact, ids)

    params = SamplingParams(max_tokens=24)
    prompts = [random_prompt(i, 9) for i in range(2)]
    texts = []
    for speculation in (None, ngram(3)):
        with LLM(tmp_path / "awq", speculative_config=speculation) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            texts.append([output.outputs[0].token_ids for output in outputs])
    assert texts[0] == texts[1]

    # The same flags again: nothing is searched, nothing is built.
    assert main([*flags, "--output_dir", str(tmp_path / "awq")]) == 0
    again = capsys.readouterr().err
    assert "quantise by awq: reused" in again and "is up to date" in again


@pytest.mark.matrix
def test_the_target_writes_what_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TOKENS", 1200)
    windows = written_windows(load_checkpoint(TINY))
    assert sum(map(len, windows)) >= 1200 and len({tuple(w.tolist()) for w in windows}) > 1
    assert [path.name for path in cache.iterdir() if path.name.startswith("texts-")] == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--quantize", "gptq", "--weight_dtype", "int4"], "'gptq' is not supported .*rtn, awq"),
        (["--quantize", "awq"], "with --weight_dtype auto; .* give --weight_dtype int4, or"),
        (["--quantize", "awq", "--weight_dtype", "int8"], "with --weight_dtype int8; it makes int"),
        (["--quantize", "rtn"], "rtn was given without --weight_dtype int8 or int4"),
        (["--calibration_text", "t", "--weight_dtype", "int4"], "t was given without --quantize"),
    ],
)
def test_flags_that_contradict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    build = ["--checkpoint_dir", str(TINY), "--output_dir", str(tmp_path / "e"), *flags]
    assert main(build) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--weight_group_size", "256"], "size 256: groups have to divide the 704 inputs"),
        (["--weight_group_size", "0"], "size 0: groups have to divide the 256 inputs"),
        (["--calibration_text", "/nowhere"], "--calibration_text /nowhere cannot be read"),
        (["--calibration_text", "SHORT"], "has [0-9]+ tokens, up to .*; give 64 or more"),
    ],
)
def test_what_does_not_fit_is_refused(
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("trtspec.train.awq.require_modelopt", lambda: None)
    short = tmp_path / "short.txt"
    short.write_text("a few words")
    more = [str(short) if each == "SHORT" else each for each in more]
    said = refused(TINY, tmp_path, capsys, *more)
    assert re.search(message, said)
    assert not (cache / "quantised").exists()


def test_checkpoints_that_are_refused(
    cache: Path,
    models: TinyModels,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = models.folder("llama")
    monkeypatch.setattr("trtspec.train.awq.require_modelopt", lambda: None)
    assert "divide the 88 inputs" in refused(folder, tmp_path, capsys)
    for found, names in REFUSED.items():
        for name in names:
            path = made(name, tmp_path / name)
            said = refused(path, tmp_path, capsys)
            assert f"has {found}, which it does not quantise; give --quantize rtn" in said
    plain = tmp_path / "plain"
    shutil.copytree(TINY, plain)
    checkpoint = load_checkpoint(TINY)
    ones = {name: torch.ones(size) for name, size in inputs_of(checkpoint).items()}
    write_quantised(checkpoint, *quantised_layers(checkpoint, ones, 32), plain)
    assert "are quantised already (int4)" in refused(plain, tmp_path, capsys)
    bare = tmp_path / "bare"
    shutil.copytree(TINY, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    assert "bare has no tokenizer to read a text by" in refused(bare, tmp_path, capsys)
    wider = json.loads((TINY / "config.json").read_text()) | {"text_config": {}}
    (bare / "config.json").write_text(json.dumps(wider))
    assert "holds more than a language model" in refused(bare, tmp_path, capsys)


def test_without_modelopt(
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "modelopt", None)
    monkeypatch.setitem(sys.modules, "modelopt.torch.quantization", None)
    said = refused(TINY, tmp_path, capsys)
    assert "--quantize awq needs modelopt.torch.quantization" in said
    assert "pip install 'trtspec[train]'" in said


def refused(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What a build by AWQ says that fails and leaves nothing."""
    output = tmp_path / "engine"
    flags = ["--checkpoint_dir", str(path), "--output_dir", str(output), "--backend", "eager"]
    assert main([*flags, "--weight_dtype", "int4", "--quantize", "awq", *more]) == 1
    assert not output.exists()
    return capsys.readouterr().err
