"""Synthetic checkpoints compute what their sources compute, at the sizes that were asked for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from checkpoint_converters import load_checkpoint
from trtspec import LLM, SamplingParams
from trtspec.bench.synthetic.engine import open_llm, synthetic_engine
from trtspec.bench.synthetic.network import Synthetic, SyntheticTensors
from trtspec.bench.synthetic.sizes import SIZES, Sizes
from trtspec.bench.synthetic_flag import read_sizes
from trtspec.builder.locate import find_model
from trtspec.commands import bench
from trtspec.config.kv import EIGHT_BITS
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError, ConfigError, EngineError
from trtspec.models.causal_lm import CausalLM

from .. import inside
from ..e2e.dflash_heads import random_dflash
from ..e2e.helpers import TinyModels, random_prompt
from ..models.paged import Feed, PagedModel
from ..models.tiny_hf import VOCAB
from ..tiny_config import attention_of, dense_of

PROMPT = random_prompt(3, 30)
TREE, PARENTS = [PROMPT[20], 5, 9, 77, 130], [-1, 0, 0, 1, 2]

# The sources have hidden size 64, heads of 16, 4 over 2 of them, 88 features and 2 layers.
EXACT = Sizes(256, 5, 192, 48, 200)


def logits(
    folder: Path, sizes: Sizes | None, dtype: torch.dtype = torch.float32
) -> tuple[ModelConfig, Tensor]:
    """Rows of a prefill in two chunks, then those of a tree; of the source without sizes."""
    source = load_checkpoint(folder)
    if sizes is not None:
        made = Synthetic(source.config, sizes)
        tensors = SyntheticTensors(made, source.tensors, dtype, "cpu")
        source = replace(source, config=made.config, tensors=tensors)
    model = CausalLM(source.config, dtype)
    model.load_weights(source)
    paged = PagedModel(model)
    rows = [paged.run({0: Feed(PROMPT[:9], 0)}), paged.run({0: Feed(PROMPT[9:20], 9)})]
    return source.config, torch.cat([*rows, paged.run({0: Feed(TREE, 20, PARENTS)})])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
def test_ratios_of_4_keep_every_bit(models: TinyModels, case: str, dtype: str) -> None:
    kind = getattr(torch, dtype)
    expected = logits(models.folder(case), None, kind)[1]
    for hidden in (256, 1024):
        sizes = replace(EXACT, hidden_size=hidden)
        config, found = logits(models.folder(case), sizes, kind)
        assert torch.equal(found, expected)
        assert config.head.tied == (case == "llama3_tied")


@pytest.mark.parametrize("hidden", [64, 96, 512])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
def test_other_ratios_are_close(models: TinyModels, case: str, hidden: int) -> None:
    expected = logits(models.folder(case), None)[1]
    found = logits(models.folder(case), replace(EXACT, hidden_size=hidden))[1]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.max()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
def test_new_ids_never_win(models: TinyModels, case: str, dtype: str) -> None:
    kind, sizes = getattr(torch, dtype), replace(EXACT, hidden_size=512, vocab_size=300)
    found = logits(models.folder(case), sizes, kind)[1]
    expected = logits(models.folder(case), None, kind)[1]
    assert found.shape[1] == 300 and torch.isfinite(found).all()
    atol = (1e-5 if dtype == "float32" else 0.05) * float(expected.abs().max())
    torch.testing.assert_close(found[:, :VOCAB], expected, rtol=0, atol=atol)
    # No noise of the sampler (at most 26) brings them up, at any temperature in use.
    assert float(found[:, VOCAB:].max()) < float(found[:, :VOCAB].min()) - 1000


def test_every_weight_is_multiplied_for_real(models: TinyModels) -> None:
    """The sizes are those asked for; added layers and features are random, and what they would add
    is zero."""
    source = load_checkpoint(models.folder("llama"))
    made = Synthetic(source.config, EXACT)
    config, mixer = made.config, attention_of(made.config)
    assert (config.hidden_size, config.num_layers, dense_of(config).intermediate_size) == (
        256, 5, 200,
    )  # fmt: skip
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (12, 3, 16)
    tensors = SyntheticTensors(made, source.tensors, torch.float32, "cpu")
    for layer in range(5):
        for part in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up"):
            weight = tensors[f"layers.{layer}.{part}.weight"]
            assert float((weight == 0).float().mean()) < 0.01 and float(weight.abs().max()) < 1
        for part in ("attn.o", "mlp.down"):  # layers 0 and 1 of the source are now 0 and 2
            assert bool(tensors[f"layers.{layer}.{part}.weight"].any()) == (layer in (0, 2))
    name = "layers.1.mlp.up.weight"
    assert torch.equal(tensors[name], tensors[name])
    assert not torch.equal(tensors[name], tensors[name.replace("1", "3")])


SPECULATION = {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_speculative_tokens": 3}
OPTIONS = {"dtype": "float32", "backend": "eager", "max_seq_len": 128}


@pytest.mark.parametrize("rows", [None, 4150])
def test_an_engine_has_its_source_s_text_and_acceptance(rows: int | None) -> None:
    """A target with an EAGLE-3 head without a map, beside a larger vocabulary, which gives it one,
    and with rows of its own that never win. No weight is in a file."""
    sizes = Sizes(1024, 10, 256, 128, 704, vocab_size=4200, draft_vocab_size=rows)
    folder = synthetic_engine("trtspec-tiny", sizes, SPECULATION, **OPTIONS)
    assert not list(folder.rglob("*.safetensors"))
    found = []
    for llm in (LLM("trtspec-tiny", SPECULATION, **OPTIONS), open_llm(folder, SPECULATION)):
        with llm:
            params = [SamplingParams(24, temperature=t, seed=1, ignore_eos=True) for t in (0, 1)]
            outputs = llm.generate(["def main(argv):"] * 2, params, use_tqdm=False)
            texts = [output.outputs[0].token_ids for output in outputs]
            found.append((texts, llm.get_metrics()["acceptance_length"]))
            network = llm.config.drafts[0].network
    assert found[0] == found[1] and found[0][1] > 1.5
    assert llm.config.target.vocab_size == 4200 and network.maps_tokens
    assert network.draft_vocab_size == (rows or 4096)
    assert network.capture_layers == (1, 5, 8)  # of 8 layers: 1, 4, 7
    recipe = json.loads((folder / "synthetic.json").read_text())
    recipe["target"] = recipe["drafts"]["draft"]
    (folder / "synthetic.json").write_text(json.dumps(recipe))
    with pytest.raises((CheckpointError, EngineError)):
        open_llm(folder, False)
    with pytest.raises(ConfigError, match="draft_vocab_size 4150 of a head with 4096 rows needs"):
        small = replace(sizes, vocab_size=None, draft_vocab_size=4150)
        synthetic_engine("trtspec-tiny", small, SPECULATION, **OPTIONS)


def test_a_head_that_guesses_blocks(tmp_path: Path) -> None:
    """With a vocabulary head of its own: its guesses are its source's, at another size."""
    hf = AutoModelForCausalLM.from_pretrained(find_model("trtspec-tiny"))
    folder = random_dflash(hf, tmp_path / "head", causal_head=True)
    tensors = load_file(folder / "model.safetensors")
    tensors = {n: x for n, x in tensors.items() if "q_norm" not in n and "k_norm" not in n}
    noise = torch.Generator().manual_seed(3)
    tensors["lm_head.weight"] = torch.randn(4096, 256, generator=noise)
    save_file(tensors, folder / "model.safetensors")
    speculation = {"method": "jetspec", "model": str(folder), "tree_depth": 4, "budget": 32}
    sizes = Sizes(1024, 10, 256, 128, 704)
    made = synthetic_engine("trtspec-tiny", sizes, speculation, **OPTIONS)
    proposed = []
    for llm in (LLM("trtspec-tiny", speculation, **OPTIONS), open_llm(made, speculation)):
        with llm:
            drafter: Any = inside.drafter(llm)
            roll_out, found = drafter._roll_out, list[Tensor]()

            def watched(*given: Any, roll_out: Any = roll_out, found: list[Tensor] = found) -> Any:
                trees = roll_out(*given)
                found += trees[:2]
                return trees

            drafter._roll_out = watched
            llm.generate("def main(argv):", SamplingParams(12), use_tqdm=False)
            proposed.append(found)
    assert len(proposed[0]) > 10
    assert all(map(torch.equal, *proposed))


def test_benchmarks_take_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every engine of a comparison finds its weights."""
    output = tmp_path / "x.json"
    flags = ["compare", "--drafts", "trtspec-tiny-eagle3", "--methods", "eagle3:3", "auto:eagle3"]
    flags += ["--rounds", "1", "--num_prompts", "1", "--max_tokens", "8", "--prompt_tokens", "16"]
    flags += ["--max_seq_len", "128", "--dtype", "float32", "--backend", "eager", "--ignore_eos"]
    sizes = json.dumps(asdict(Sizes(256, 9, 256, 128, 704)))
    assert bench.main([*flags, "--output", str(output), "--synthetic", sizes]) == 0
    (point,) = json.loads(output.read_text())["points"]
    assert [figures["name"] for figures in point["methods"]] == ["none", "eagle3:3", "auto:eagle3"]
    assert point["methods"][1]["acceptance"]["acceptance_length"] > 1.5
    assert bench.main(["compare", "--synthetic", "9b"]) == 1
    assert "'9b' are neither one of 300m, 1b, 8b nor a JSON object" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "sizes", "message"),
    [
        ("llama", replace(EXACT, hidden_size=32), "hidden_size 32 is less than the source's 64"),
        ("llama", replace(EXACT, hidden_size=64, vocab_size=300), "no room for the constant"),
        ("llama", replace(EXACT, vocab_size=100), "vocab_size 100 is less than the source's 203"),
        ("llama", replace(EXACT, num_layers=1), "num_layers 1 is less than the source's 2"),
        ("llama", replace(EXACT, intermediate_size=80), "intermediate_size 80 is less than"),
        ("llama", replace(EXACT, query_size=64), "query_size 64 and kv_size 48 must be"),
        ("llama", replace(EXACT, query_size=100), "query_size 100 and kv_size 48 must be"),
        ("llama_linear_biases", EXACT, "LlamaForCausalLM with parts of its own"),
        ("qwen2_tied", EXACT, "Qwen2ForCausalLM with parts of its own"),
        ("qwen3", EXACT, "Qwen3ForCausalLM with parts of its own"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    models: TinyModels, source: str, sizes: Sizes, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Synthetic(load_checkpoint(models.folder(source)).config, sizes)


def test_caches_stay_as_they_were_asked_for(models: TinyModels) -> None:
    source = load_checkpoint(models.folder("llama")).config
    wide = Synthetic(source.with_caches(EIGHT_BITS), EXACT).config
    assert wide == Synthetic(source, EXACT).config.with_caches(EIGHT_BITS)


def test_sizes_have_the_cost_that_they_claim() -> None:
    for name, low, high in (("300m", 0.28, 0.33), ("1b", 0.9, 1.1), ("8b", 6.8, 7.2)):
        of = SIZES[name]
        attention = 2 * of.hidden_size * (of.query_size + of.kv_size)
        count = of.num_layers * (attention + 3 * of.hidden_size * of.intermediate_size)
        assert low < count / 1e9 < high
    for text in ("9b", "[1]", '{"hidden": 3}'):
        with pytest.raises(ConfigError):
            read_sizes(text)
