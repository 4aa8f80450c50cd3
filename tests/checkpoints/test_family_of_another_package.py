"""A family that comes by an entry point runs like those of the package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from checkpoint_converters import load_checkpoint
from checkpoint_converters.families import registry
from checkpoint_converters.families.family import Family
from checkpoint_converters.names import NameMap
from trtspec import SamplingParams
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError, ConfigError

from ..e2e.helpers import ngram, open_llm, tokens
from ..other_package import installer
from .toy_family import TOY

WIDTH, BLOCKS, HEADS, LOOK_BACK = 32, 4, 4, 6
CONFIG: dict[str, Any] = {
    "architectures": ["ToyForCausalLM"],
    "model_type": "toy",
    "tokens": 90,
    "width": WIDTH,
    "inner": 40,
    "blocks": BLOCKS,
    "heads": HEADS,
    "kv_heads": 2,
    "look_back": LOOK_BACK,
    "norm_eps": 1e-6,
    "context": 128,
    "theta": 10000.0,
}
THEIRS = {
    "input_layernorm.weight": "norm_1",
    **{f"self_attn.{part}_proj.weight": f"look.{part}" for part in "qkvo"},
    **{f"self_attn.{part}_proj.bias": f"look.{part}_shift" for part in "qkv"},
    "post_attention_layernorm.weight": "norm_2",
    "mlp.gate_proj.weight": "think.w1",
    "mlp.up_proj.weight": "think.w3",
    "mlp.down_proj.weight": "think.w2",
}


class Entry:
    """An entry point of a package."""

    value = "toys:TOY"
    dist = None

    def __init__(self, family: Family) -> None:
        self.family = family

    def load(self) -> Family:
        return self.family


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def installed(*families: Family) -> None:
        entries = [Entry(family) for family in families]
        monkeypatch.setattr(registry, "entry_points", lambda group: entries)
        registry.families.cache_clear()

    yield installed
    monkeypatch.undo()
    registry.families.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with such an entry point."""
    forget = registry.families.cache_clear
    yield installer(tmp_path / "site", monkeypatch, registry.ENTRY_POINTS, forget)
    monkeypatch.undo()
    forget()


def same_model() -> Qwen2ForCausalLM:
    """The toy's arithmetic, as transformers knows it."""
    torch.manual_seed(4)
    kinds = ["full_attention", "sliding_attention"] * (BLOCKS // 2)
    config = Qwen2Config(
        vocab_size=90,
        hidden_size=WIDTH,
        intermediate_size=40,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=128,
        use_sliding_window=True,
        sliding_window=LOOK_BACK,
        layer_types=kinds,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.3)
    return model


def write(folder: Path, model: Qwen2ForCausalLM) -> Path:
    named = {"model.embed_tokens.weight": "tokens.table", "model.norm.weight": "last_norm"}
    named |= {"lm_head.weight": "say"}
    for i in range(BLOCKS):
        named |= {f"model.layers.{i}.{theirs}": f"block{i}.{toy}" for theirs, toy in THEIRS.items()}
    tensors: dict[str, Tensor] = {named[n]: t.contiguous() for n, t in model.state_dict().items()}
    folder.mkdir()
    save_file({**tensors, "notes": torch.zeros(1)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def greedy(model: Qwen2ForCausalLM, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    found = model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return found[0, len(prompt) :].tolist()


@torch.no_grad()
def test_its_text_is_that_of_transformers(package: Callable[[str], None], tmp_path: Path) -> None:
    model = same_model()
    folder = write(tmp_path / "toy", model)
    with pytest.raises(CheckpointError, match=r"'ToyForCausalLM' is not supported.*LlamaForCausal"):
        load_checkpoint(folder)
    package("tests.checkpoints.toy_family:TOY")
    checkpoint = load_checkpoint(folder)
    windows = [layer.window for layer in checkpoint.config.layers]
    assert windows == [0, LOOK_BACK] * 2 and checkpoint.ignored == ("notes",)
    prompts = [[5, 9, 41, 7, 7, 2, 80, 33, 12, 64], [3]]
    expected = [greedy(model, prompt, 16) for prompt in prompts]
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    for speculation in (None, ngram(3)):
        with open_llm(folder, speculation, max_batch_size=2) as llm:
            assert tokens(llm.generate(prompts, params)) == expected


def test_its_tensors_are_checked(install: Any, tmp_path: Path) -> None:
    install(TOY)
    folder = write(tmp_path / "toy", same_model())
    tensors = load_file(folder / "model.safetensors")
    tensors["block1.look.w"] = tensors.pop("block1.look.q_shift")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"missing: block1\.look\.q_shift; 1 .* no use: block1\.look\.w"
    ):
        load_checkpoint(folder)


def test_what_no_block_runs_is_refused_when_a_build_is_planned(
    install: Any, tmp_path: Path
) -> None:
    install(TOY)
    folder = write(tmp_path / "toy", same_model())
    (folder / "config.json").write_text(json.dumps(CONFIG | {"thinks": False}))
    with pytest.raises(ConfigError, match="ToyForCausalLM has layers without feed-forward"):
        plan_build(folder, BuildConfig("float32", 2, 64, backend="eager"))


def test_a_family_must_name_its_tensors(install: Any, tmp_path: Path) -> None:
    names = {ours: theirs for ours, theirs in TOY.names.names.items() if ".down." not in ours}
    install(replace(TOY, names=NameMap(names, ("notes",))))
    with pytest.raises(CheckpointError, match=r"does not name: layers\.0\.mlp\.down\.weight"):
        load_checkpoint(write(tmp_path / "toy", same_model()))


@pytest.mark.parametrize("key", ["architecture", "model_type"])
def test_a_name_that_is_taken(install: Any, key: str) -> None:
    taken = {"architecture": "LlamaForCausalLM", "model_type": "llama"}[key]
    install(replace(TOY, **{key: taken}))
    with pytest.raises(ConfigError, match=f"toys:TOY adds a family of {key} '{taken}'"):
        registry.families()
