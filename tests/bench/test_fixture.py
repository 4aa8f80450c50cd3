"""Widened checkpoints compute what their sources compute, and hold what their sizes promise."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint_converters import load_checkpoint
from trtspec.bench import checkpoint_files, fixture
from trtspec.bench.checkpoint_files import SourceCheckpoint
from trtspec.bench.fixture import make_fixture
from trtspec.bench.fixture_shapes import SHAPES, DecoderShape, FixtureShape
from trtspec.errors import CheckpointError, ConfigError
from trtspec.models.causal_lm import CausalLM
from trtspec.speculative.eagle.widening import CAPTURED, captured

from ..e2e.helpers import TinyModels, random_prompt
from ..models.paged import Feed, PagedModel
from ..models.tiny_hf import VOCAB
from ..tiny_config import attention_of, dense_of

PROMPT = random_prompt(3, 30)
TREE, PARENTS = [PROMPT[20], 5, 9, 77, 130], [-1, 0, 0, 1, 2]

# The sources have hidden size 64, heads of 16, 4 over 2 of them, 88 features and 2 layers.
EXACT = FixtureShape("wide", DecoderShape(256, 5, 192, 48, 200), DecoderShape(256, 3, 64, 32, 128))


def of_hidden(size: int) -> FixtureShape:
    return replace(EXACT, target=replace(EXACT.target, hidden_size=size))


def make(shape: FixtureShape, source: Path, output: Path, *drafts: Path, **options: object) -> Path:
    """The folder of the widened target."""
    list(make_fixture(shape, source, drafts, output, **options))
    return output / f"{source.name}-{shape.name}"


def logits(folder: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of a prefill in two chunks, then those of a tree."""
    checkpoint = load_checkpoint(folder)
    model = CausalLM(checkpoint.config, dtype)
    model.load_weights(checkpoint)
    paged = PagedModel(model)
    rows = [paged.run({0: Feed(PROMPT[:9], 0)}), paged.run({0: Feed(PROMPT[9:20], 9)})]
    return torch.cat([*rows, paged.run({0: Feed(TREE, 20, PARENTS)})])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
def test_ratios_of_4_keep_every_bit(
    models: TinyModels, tmp_path: Path, case: str, dtype: str
) -> None:
    kind = getattr(torch, dtype)
    expected = logits(models.folder(case), kind)
    for hidden in (256, 1024):
        wide = make(of_hidden(hidden), models.folder(case), tmp_path / str(hidden), dtype=dtype)
        assert torch.equal(logits(wide, kind), expected)
        config = json.loads((wide / "config.json").read_text())
        assert config["tie_word_embeddings"] == (case == "llama3_tied")
        assert config["dtype"] == dtype


@pytest.mark.parametrize("hidden", [64, 128, 192, 512])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
def test_other_ratios_are_close(models: TinyModels, tmp_path: Path, case: str, hidden: int) -> None:
    expected = logits(models.folder(case))
    wide = make(of_hidden(hidden), models.folder(case), tmp_path)
    torch.testing.assert_close(logits(wide), expected, rtol=0, atol=1e-5 * float(expected.max()))
    # No weight was rounded: they move by powers of two only, whatever the ratio.
    name = "model.layers.0.input_layernorm.weight"
    source = SourceCheckpoint(models.folder(case)).tensor(name)
    weight = load_file(wide / "model.safetensors")[name]
    exponent = {64: 0, 128: 0, 192: 0, 512: 1}[hidden]
    assert torch.equal(weight[:64], source * 0.5**exponent)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
@pytest.mark.parametrize("hidden", [256, 512])
def test_new_ids_never_win(
    models: TinyModels, tmp_path: Path, case: str, dtype: str, hidden: int
) -> None:
    kind = getattr(torch, dtype)
    wide = make(of_hidden(hidden), models.folder(case), tmp_path, vocab_size=300, dtype=dtype)
    found, expected = logits(wide, kind), logits(models.folder(case), kind)
    assert found.shape[1] == 300 and torch.isfinite(found).all()
    atol = 1e-5 if dtype == "float32" else 0.05
    scale = float(expected.abs().max())
    torch.testing.assert_close(found[:, :VOCAB], expected, rtol=0, atol=atol * scale)
    # No noise of the sampler (at most 26) brings them up, at any temperature in use.
    assert float(found[:, VOCAB:].max()) < float(found[:, :VOCAB].min()) - 1000


def test_sizes_are_those_of_the_shape(models: TinyModels, tmp_path: Path) -> None:
    (line,) = make_fixture(EXACT, models.folder("llama"), [], tmp_path)
    checkpoint = load_checkpoint(tmp_path / "llama-wide")
    config = checkpoint.config
    inner = dense_of(config).intermediate_size
    assert (config.hidden_size, config.num_layers, inner) == (256, 5, 200)
    mixer = attention_of(config)
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (12, 3, 16)
    count = sum(checkpoint.tensors[name].numel() for name in checkpoint.tensors)
    assert f"{count / 1e6:,.1f} M parameters" in line and "(exact)" in line


def test_added_weights_are_random_but_for_output_projections(
    models: TinyModels, tmp_path: Path
) -> None:
    tensors = load_checkpoint(make(EXACT, models.folder("llama"), tmp_path)).tensors
    # Layers 0 and 1 of the source are now 0 and 2.
    for layer in range(5):
        for part in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up"):
            weight = tensors[f"layers.{layer}.{part}.weight"]
            assert float((weight == 0).float().mean()) < 0.01
            assert float(weight.abs().max()) < 1
        for part in ("attn.o", "mlp.down"):
            assert bool(tensors[f"layers.{layer}.{part}.weight"].any()) == (layer in (0, 2))


def test_the_seed_decides_the_random_weights(models: TinyModels, tmp_path: Path) -> None:
    source = models.folder("llama")
    a, b, c = (
        load_file(make(EXACT, source, tmp_path / str(i), seed=s) / "model.safetensors")
        for i, s in enumerate((0, 0, 1))
    )
    assert all(torch.equal(a[name], b[name]) for name in a)
    name = "model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(a[name], c[name])
    assert torch.equal(a["model.embed_tokens.weight"], c["model.embed_tokens.weight"])


def test_shards(models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fixture,
        "write_checkpoint",
        lambda *a: checkpoint_files.write_checkpoint(*a, shard_bytes=300_000),
    )
    wide = make(EXACT, models.folder("llama"), tmp_path)
    files = sorted(path.name for path in wide.glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert all((wide / f).stat().st_size < 310_000 for f in files)
    assert torch.equal(logits(wide), logits(models.folder("llama")))


def test_a_draft_model_gets_its_own_shape(models: TinyModels, tmp_path: Path) -> None:
    lines = list(
        make_fixture(
            EXACT, models.folder("llama"), [models.draft("llama")], tmp_path, vocab_size=260
        )
    )
    config = load_checkpoint(tmp_path / "llama-draft-wide").config
    assert (config.hidden_size, config.num_layers, config.vocab_size) == (256, 3, 260)
    torch.testing.assert_close(
        logits(tmp_path / "llama-draft-wide")[:, :VOCAB], logits(models.draft("llama"))
    )
    assert "of the target's cost" in lines[1]


# -- EAGLE-3 heads ----------------------------------------------------------------------------

H, HEADS, KV, D, DRAFT_VOCAB = 64, 4, 2, 16, 50


def save_head(folder: Path, prefix: str, config: dict[str, object], maps: bool = True) -> Path:
    """A random head over the 64 wide targets, as the EAGLE repository or ModelOpt writes it."""
    generator = torch.Generator().manual_seed(4)
    rows = DRAFT_VOCAB if maps else VOCAB
    shapes = {
        "fc.weight": (H, 3 * H),
        f"{prefix}self_attn.q_proj.weight": (HEADS * D, 2 * H),
        f"{prefix}self_attn.k_proj.weight": (KV * D, 2 * H),
        f"{prefix}self_attn.v_proj.weight": (KV * D, 2 * H),
        f"{prefix}self_attn.o_proj.weight": (H, HEADS * D),
        f"{prefix}mlp.gate_proj.weight": (88, H),
        f"{prefix}mlp.up_proj.weight": (88, H),
        f"{prefix}mlp.down_proj.weight": (H, 88),
        "lm_head.weight": (rows, H),
    }
    tensors = {n: torch.randn(*s, generator=generator) * 0.125 for n, s in shapes.items()}
    for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"{prefix}{norm}.weight"] = torch.rand(H, generator=generator) + 0.5
    tensors["norm.weight"] = torch.rand(H, generator=generator) + 0.5
    if maps:
        ids = torch.arange(0, 4 * DRAFT_VOCAB, 4)
        tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, ids, True)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    sizes = {
        "hidden_size": H, "num_hidden_layers": 1, "intermediate_size": 88,
        "num_attention_heads": HEADS, "num_key_value_heads": KV, "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5, "torch_dtype": "float32", "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    if maps:
        sizes["draft_vocab_size"] = DRAFT_VOCAB
    (folder / "config.json").write_text(json.dumps({**sizes, **config}))
    return folder


def head_logits(folder: Path, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """EAGLE-3 in plain float64, causal attention without rotation: logits and the states that the
    next pass reads, of embeddings ``[T, H]`` and captured states ``[T, 3 H]``."""
    source = SourceCheckpoint(folder)
    config, t = source.config, {n: source.tensor(n).double() for n in source.files}
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in t else "layers.0."
    head_dim = config.get("head_dim", D)

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.pow(2).mean(-1, True) + config["rms_norm_eps"]).rsqrt() * t[name + ".weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ t[f"{prefix}{name}.weight"].T

    x = states @ t["fc.weight"].T
    both = torch.cat(
        (norm(embedded, prefix + "input_layernorm"), norm(x, prefix + "hidden_norm")), -1
    )
    q, k, v = (
        linear(both, f"self_attn.{p}_proj").unflatten(-1, (-1, head_dim)).transpose(0, 1)
        for p in "qkv"
    )
    attended = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    x = x + linear(attended.transpose(0, 1).flatten(1), "self_attn.o_proj")
    y = norm(x, prefix + "post_attention_layernorm")
    gate, up = linear(y, "mlp.gate_proj"), linear(y, "mlp.up_proj")
    x = x + linear(torch.nn.functional.silu(gate) * up, "mlp.down_proj")
    return norm(x, "norm") @ t["lm_head.weight"].T, x


def widened(vectors: Tensor, hidden: int, copies: int) -> Tensor:
    """Hidden vectors ``[T, H]`` as the wider target has them."""
    wide = torch.zeros(len(vectors), hidden, dtype=vectors.dtype)
    wide[:, : copies * H] = vectors.repeat(1, copies)
    return wide


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0."])
@pytest.mark.parametrize(("hidden", "copies"), [(256, 1), (512, 2)])
def test_eagle3_heads(
    models: TinyModels, tmp_path: Path, prefix: str, hidden: int, copies: int
) -> None:
    head = save_head(tmp_path / "head", prefix, {"eagle_config": {CAPTURED: [-1, 0, 1]}})
    shape = of_hidden(hidden)
    list(make_fixture(shape, models.folder("llama"), [head], tmp_path / "out", vocab_size=260))
    wide = tmp_path / "out" / "head-wide"
    generator = torch.Generator().manual_seed(8)
    embedded, *states = torch.randn(4, 7, H, generator=generator, dtype=torch.float64)
    expected, next_state = head_logits(head, embedded, torch.cat(states, -1))
    wide_states = torch.cat([widened(s, hidden, copies) for s in states], -1)
    found, wide_next = head_logits(wide, widened(embedded, hidden, copies), wide_states)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(wide_next, widened(next_state, hidden, copies))
    # The constant of the wider vocabulary, which embeddings and states carry, is not read.
    constant = torch.zeros(hidden, dtype=torch.float64)
    constant[copies * H] = 2.0**-14
    with_constant = head_logits(
        wide, widened(embedded, hidden, copies) + constant, wide_states + constant.repeat(3)
    )
    torch.testing.assert_close(with_constant, (found, wide_next), rtol=1e-6, atol=1e-6)

    tensors = load_file(wide / "model.safetensors")
    source = load_file(head / "model.safetensors")
    assert set(tensors) == set(source)
    assert torch.equal(tensors["d2t"], source["d2t"])
    assert tensors["t2d"].nonzero().equal(source["t2d"].nonzero()) and len(tensors["t2d"]) == 260
    config = json.loads((wide / "config.json").read_text())
    assert config["eagle_config"][CAPTURED] == [-1, 0, 2]  # source layers 0, 1 are now 0, 2
    assert (config["draft_vocab_size"], config["vocab_size"]) == (DRAFT_VOCAB, 260)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Of 8 layers that became 24; the EAGLE repository reads outputs 1, L / 2 - 1 and L - 4.
        ({}, {"eagle_config": {CAPTURED: [3, 9, 12]}}),
        ({"eagle_config": {}}, {"eagle_config": {CAPTURED: [3, 9, 12]}}),
        (
            {"eagle_config": {"use_last_layernorm": True, CAPTURED: [0, 7, 8]}},
            {"eagle_config": {"use_last_layernorm": True, CAPTURED: [0, 21, 24]}},
        ),
        ({CAPTURED: [0, 2, 8]}, {CAPTURED: [0, 4, 22]}),  # inputs of layers, one more
    ],
)
def test_captured_layers_move_with_the_source_s_layers(
    tmp_path: Path, given: dict[str, object], expected: dict[str, object]
) -> None:
    head = SourceCheckpoint(save_head(tmp_path / "head", "midlayer.", given))
    assert captured(head.config, 8, fixture._moved(head, 8, 24)) == expected


def test_a_head_without_a_map_gets_one_beside_a_wider_vocabulary(
    models: TinyModels, tmp_path: Path
) -> None:
    head = save_head(tmp_path / "h", "layers.0.", {"eagle_config": {CAPTURED: [0, 1, 2]}}, False)
    for name, options in (("same", {}), ("more", {"vocab_size": 300})):
        list(make_fixture(EXACT, models.folder("llama"), [head], tmp_path / name, **options))
        tensors = load_file(tmp_path / name / "h-wide" / "model.safetensors")
        assert tensors["lm_head.weight"].shape == (VOCAB, 256)
        assert ("d2t" in tensors) == (name == "more")
    assert torch.equal(tensors["d2t"], torch.zeros(VOCAB, dtype=torch.int64))


# -- what is refused --------------------------------------------------------------------------


def folder_of(case: str) -> Callable[[TinyModels], Path]:
    return lambda models: models.folder(case)


@pytest.mark.parametrize(
    ("source", "shape", "options", "message"),
    [
        ("llama", of_hidden(96), {}, "64 cannot be widened to 96"),
        ("llama", of_hidden(32), {}, "hidden_size 64, which does not fit into the 32"),
        ("llama", of_hidden(128), {"vocab_size": 300}, "no room for the constant"),
        ("llama", EXACT, {"vocab_size": 100}, "vocab_size=100 is less than the 203"),
        ("llama", EXACT, {"dtype": "int8"}, "dtype 'int8' is not supported"),
        ("llama_linear_biases", EXACT, {}, "LlamaForCausalLM with biases; make-fixture widens"),
        ("qwen2_tied", EXACT, {}, "Qwen2ForCausalLM with biases; make-fixture widens"),
        (
            "llama",
            replace(EXACT, target=DecoderShape(256, 5, 64, 48, 200)),
            {},
            "4 heads over 2 K/V heads do not fit into 4 over 3",
        ),
        (
            "llama",
            replace(EXACT, target=DecoderShape(256, 5, 100, 48, 200)),
            {},
            "head_dim 16, of which the query width 100",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    models: TinyModels,
    tmp_path: Path,
    source: str,
    shape: FixtureShape,
    options: dict[str, object],
    message: str,
) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=message):
        make(shape, models.folder(source), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_nothing_half_written(
    models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = models.folder("llama")
    with pytest.raises(ConfigError, match="two sources would be written to one folder"):
        make(EXACT, source, tmp_path, source)
    make(EXACT, source, tmp_path)
    with pytest.raises(CheckpointError, match=r"llama-wide exists already"):
        make(EXACT, source, tmp_path)

    monkeypatch.setattr(checkpoint_files, "save_file", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(EXACT, source, tmp_path / "broken")
    assert list((tmp_path / "broken").iterdir()) == []
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(checkpoint_files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match=r"will take .* GB, its disk has 0\.0 GB free"):
        make(EXACT, source, tmp_path / "full")


def test_heads_of_other_targets_are_refused(models: TinyModels, tmp_path: Path) -> None:
    source = models.folder("llama")
    head = save_head(tmp_path / "head", "midlayer.", {})
    with pytest.raises(ConfigError, match="holds EAGLE-3 heads; make a fixture of their target"):
        make(EXACT, head, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"reads layer -2 of its target, which has 2"):
        make(EXACT, source, tmp_path / "out", head)  # by default it reads output L - 4


def test_published_shapes_have_the_cost_they_claim() -> None:
    def size(shape: DecoderShape) -> int:
        attention = 2 * shape.hidden_size * (shape.query_size + shape.kv_size)
        return shape.num_layers * (attention + 3 * shape.hidden_size * shape.intermediate_size)

    for name, low, high in (("300m", 0.28, 0.33), ("1b", 0.9, 1.1), ("8b", 6.8, 7.2)):
        target, draft = size(SHAPES[name].target), size(SHAPES[name].draft)
        assert low < target / 1e9 < high
        assert draft < target / 7
