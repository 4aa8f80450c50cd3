"""Fixtures: checkpoints that cost like a large model and write the text of a small one.

Real acceptance meets real cost without a download: a small trained target and its drafts are
widened, by the same function, to the sizes of a large model (see `trtspec.bench.widen`). Layers,
heads and features that are added compute with random weights and add nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trtspec.bench.checkpoint_files import SourceCheckpoint, check_new_folder, write_checkpoint
from trtspec.bench.fixture_shapes import DecoderShape, FixtureShape
from trtspec.bench.widen_decoder import Widening, layer_positions, widen_model
from trtspec.builder.checkpoints import PLAIN_LATENTS, PLAIN_MIXTURE, target_config
from trtspec.builder.locate import find_model
from trtspec.builder.tokenizer import tokenizer_files
from trtspec.config.model import DTYPES
from trtspec.errors import CheckpointError, ConfigError
from trtspec.models.built import attention_of, dense_of
from trtspec.speculative.registry import methods
from trtspec.speculative.widener import Widener

_README = """# {name}: a cost fixture, never a model to use

Made by `trtspec-bench make-fixture --like {like}`{options} from `{source}`: the weights of that
model, spread over tensors of the size of a `{like}` model, and random or zero weights for the rest.
It writes the text of `{source}` at the cost of a much larger model, to time speculative decoding
with real acceptance. It knows nothing that its source does not know.
"""


def make_fixture(
    shape: FixtureShape,
    source: str | Path,
    drafts: Sequence[str | Path],
    output: Path,
    dtype: str | None = None,
    vocab_size: int | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """Write the target and its drafts into ``output / (name of the source)-(name of the shape)``,
    yielding a line for each.

    Args:
        source: folder or embedded name of a model of plain decoder layers in safetensors.
        drafts: draft models (of such layers) or `widened_drafts` of that target.
        dtype: of the tensors written; None: the source's own.
        vocab_size: size of a wider vocabulary; None: the source's own.
        seed: of the random weights.

    Raises:
        ConfigError, CheckpointError: sizes that do not fit, tensors of another kind, an output that
            exists or does not fit on the disk. Every source is checked before anything is written.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    target = SourceCheckpoint(find_model(source))
    vocab = target.integer("vocab_size")
    if vocab_size is not None and vocab_size < vocab:
        raise ConfigError(f"vocab_size={vocab_size} is less than the {vocab} of {source}")
    sources = [target, *(SourceCheckpoint(find_model(draft)) for draft in drafts)]
    folders = [output / f"{s.path.resolve().name}-{shape.name}" for s in sources]
    if len(set(folders)) < len(folders):
        raise ConfigError(
            f"two sources would be written to one folder: {sorted(map(str, folders))}"
        )
    made = [
        _widen(s, shape, dtype, vocab_size or vocab, seed, None if s is target else target)
        for s in sources
    ]
    for folder, (widening, _) in zip(folders, made, strict=True):
        check_new_folder(folder, sum(piece.num_bytes for piece in widening.pieces))
    base = made[0][0]
    for folder, (widening, config) in zip(folders, made, strict=True):
        flags = "" if vocab_size is None else f" --vocab_size {vocab_size}"
        readme = _README.format(
            name=folder.name,
            like=shape.name,
            options=flags,
            source=widening.source.path.resolve().name,
        )
        texts = {"config.json": json.dumps(config, indent=2) + "\n", "README.md": readme}
        source_dir = widening.source.path
        copied = [*tokenizer_files(source_dir), source_dir / "generation_config.json"]
        present = {str(p.relative_to(source_dir)): p for p in copied if p.is_file()}
        write_checkpoint(folder, widening.pieces, texts, present)
        yield f"{folder}: {_describe(widening, base)}"


def _widen(
    source: SourceCheckpoint,
    shape: FixtureShape,
    dtype: str | None,
    vocab_size: int,
    seed: int,
    target: SourceCheckpoint | None,
) -> tuple[Widening, dict[str, Any]]:
    """One checkpoint and its new config; ``target`` is that of a draft."""
    widener = next((each for each in _wideners() if each.recognises(source.files)), None)
    if widener is not None and target is None:
        raise ConfigError(f"{source.path} holds {widener.runs}; make a fixture of their target")
    if widener is None:
        _require_plain(source.path)
    sizes = shape.target if target is None else shape.draft
    if widener is not None:
        wide = shape.target
        sizes = DecoderShape(
            wide.hidden_size, 1, wide.query_size, wide.kv_size, wide.intermediate_size
        )
    name = dtype or str(source.config.get("dtype") or source.config.get("torch_dtype"))
    name = name.removeprefix("torch.")
    if name not in DTYPES:
        raise CheckpointError(f"{source.path / 'config.json'} names no dtype; give --dtype")
    if target is not None and source.integer("vocab_size") > vocab_size:
        raise ConfigError(
            f"{source.path} has a vocabulary of {source.integer('vocab_size')} tokens, its target "
            f"of {vocab_size}"
        )
    widening = Widening(source, sizes, getattr(torch, name), vocab_size, seed)
    config = _config(widening, name)
    if widener is not None:
        assert target is not None
        if source.integer("hidden_size") != target.integer("hidden_size"):
            raise ConfigError(
                f"{source.path} has hidden size {source.integer('hidden_size')}, its target "
                f"{target.integer('hidden_size')}; only heads as wide as their target can be "
                "widened"
            )
        widener.widen(widening)
        layers = target.integer("num_hidden_layers")
        config |= widener.config(widening, layers, _moved(source, layers, shape.target.num_layers))
    else:
        widen_model(widening)
        config["tie_word_embeddings"] = not any(p.name == "lm_head.weight" for p in widening.pieces)
    return widening, config


def widened_drafts() -> str:
    """What is widened beside models, for lists."""
    return " and ".join(widener.runs for widener in _wideners())


def _wideners() -> list[Widener]:
    return [method.widener for method in methods().values() if method.widener is not None]


def _require_plain(path: Path) -> None:
    """CheckpointError for a model with parts that are not widened."""
    config = target_config(path)
    found: dict[str, None] = {}
    for layer in config.layers.specs:
        attention, dense = attention_of(layer), dense_of(layer)
        parts = {
            "biases": attention.bias or attention.output_bias or dense.bias,
            "norms of heads": attention.qk_norm is not None,
            "sliding windows": attention.window > 0,
        }
        found |= dict.fromkeys(part for part, there in parts.items() if there)
    if found:
        raise CheckpointError(
            f"{path} is a {config.architecture} with {', '.join(found)}; make-fixture widens "
            f"decoders without biases, norms of heads and sliding windows, and {widened_drafts()}"
        )


def _config(w: Widening, dtype: str) -> dict[str, Any]:
    config = dict(w.source.config)
    config.pop("torch_dtype", None)
    config |= {
        "hidden_size": w.shape.hidden_size,
        "num_hidden_layers": w.shape.num_layers,
        "intermediate_size": w.shape.intermediate_size,
        "num_attention_heads": w.heads.wide_heads,
        "num_key_value_heads": w.heads.wide_kv_heads,
        "head_dim": w.heads.head_dim,
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)) * w.hidden.eps_factor,
        "vocab_size": w.vocab_size,
        "dtype": dtype,
    }
    if w.shape.num_experts:
        experts, chosen = w.shape.num_experts, w.shape.top_k
        config |= PLAIN_MIXTURE.spelled | {"sliding_window": None}
        config |= {"num_local_experts": experts, "num_experts_per_tok": chosen}
    if w.latents is not None:
        source = target_config(w.source.path)
        config |= PLAIN_LATENTS.spelled | w.latents.config(source, w.shape.num_layers)
    return config


def _moved(source: SourceCheckpoint, layers: int, wide_layers: int) -> Callable[[int], int]:
    """Where a layer of the target, of which a draft reads the output, is in the wider one."""
    places = layer_positions(layers, wide_layers)

    def moved(output: int) -> int:
        """-1, the embeddings, and L, the final norm, stay what they are."""
        if not -1 <= output <= layers:
            raise CheckpointError(
                f"{source.path} reads layer {output} of its target, which has {layers}"
            )
        return -1 if output < 0 else wide_layers if output == layers else places[output]

    return moved


def _describe(widening: Widening, target: Widening) -> str:
    hidden, count = widening.hidden, widening.num_parameters
    ratio = hidden.wide // hidden.size
    exact = "exact" if hidden.copies == 1 else f"{ratio} is no power of 4: rounding may differ"
    share = ""
    if widening is not target:
        share = f", {widening.num_multiplied / target.num_multiplied:.3f} of the target's cost"
    return (
        f"{count / 1e6:,.1f} M parameters{share}; hidden {hidden.size} x {ratio} ({exact}), "
        f"layers {widening.source.integer('num_hidden_layers')} -> {widening.shape.num_layers}, "
        f"vocabulary {widening.vocab} -> {widening.vocab_size}"
    )
