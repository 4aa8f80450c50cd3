"""What quantising weights or caches costs in accuracy, measured during a build."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from checkpoint_converters import Checkpoint, DraftCheckpoint
from trtspec.builder.checkpoints import load_target
from trtspec.builder.tokenizer import has_tokenizer, read_tokenizer
from trtspec.config.model import ModelConfig
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import built_dtype
from trtspec.engine.weight_formats import network_formats
from trtspec.errors import CheckpointError
from trtspec.formats.base import Rounding
from trtspec.formats.registry import IN_PANELS
from trtspec.log import logger
from trtspec.models.causal_lm import CausalLM, new_caches
from trtspec.models.embedding import Embedding
from trtspec.models.feed_forwards.experts import ExpertLinear
from trtspec.models.layer_facts import keeps_states, matrix_bytes
from trtspec.models.linear import Linear
from trtspec.models.rows import Caches, PackedRows, Rows
from trtspec.models.state_rows import StateRows
from trtspec.ops import native as native  # registers the custom ops
from trtspec.ops.collectives import RankGroup

NUM_TOKENS = 128
NUM_CACHED = 2000
"""Tokens over which cache formats are compared; a cache matters after long prefixes."""
MAX_COMPARED_BYTES = 4 << 30
"""Most bytes of float weights that `text_report` loads a second time."""
_BLOCK = 16
_TEXT = '''def count_words(path):
    """Count how often each word occurs in a text file."""
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.lower().split():
                word = word.strip(".,;:!?")
                if word:
                    counts[word] = counts.get(word, 0) + 1
    return counts

The sun had set behind the hills when the two travellers came to the river. There was no bridge, and
the ferryman had gone home for the night. They sat down under a tree, made a small fire, and waited
for the morning.
'''


def rounding_report(*parts: nn.Module) -> str:
    """One line: the root mean square error of the weights of a loaded network, or of its parts on
    all ranks, relative to its checkpoint's."""
    layers: dict[str, Rounding] = {}
    for name, module in chain.from_iterable(part.named_modules() for part in parts):
        if isinstance(module, (Linear, ExpertLinear, Embedding)):
            layers[name] = layers.get(name, Rounding()) + module.rounding
    layers = {name: rounding for name, rounding in layers.items() if rounding.weight}
    if not layers:
        return "none of its own"
    total = sum(layers.values(), Rounding())
    if not total.error:
        return "as in the checkpoint"
    worst = max(layers, key=lambda name: layers[name].relative)
    return (
        f"off by {total.relative:.2%} of their root mean square, {worst} by "
        f"{layers[worst].relative:.2%}"
    )


def text_report(
    engine: EngineConfig,
    quantized: Sequence[CausalLM],
    checkpoint: Checkpoint,
    floats: Path | None = None,
    tokenizer: Path | None = None,
) -> str:
    """One line: what quantisation does to the target's next-token probabilities. The same ids run
    through the target with quantised weights (``quantized``, see `of_ranks`) and with the
    checkpoint's own, using the modules that engines are compiled from. ``floats``: the checkpoint
    that this one was quantised from, to compare with instead, and with what plain rounding makes of
    it. ``tokenizer``: its location, if not with the checkpoint."""
    size = matrix_bytes(CausalLM.matrices(checkpoint.config), IN_PANELS, built_dtype(engine))
    if size > MAX_COMPARED_BYTES:
        return (
            f"effect on its probabilities not measured: {size / 2**30:.1f} GiB of float weights "
            f"are more than {MAX_COMPARED_BYTES >> 30} GiB"
        )
    dtype = built_dtype(engine)
    source = checkpoint if floats is None else load_target(floats)
    # Rows turn by the engine's tables, which its length decides.
    config = replace(source.config, ropes=engine.target.ropes)
    exact = CausalLM(config if floats else checkpoint.config, dtype, engine.capture_layers)
    exact.load_weights(source)
    ids, what = fixed_ids(tokenizer or checkpoint.path, engine.target)
    ours, theirs = of_ranks(quantized, ids), log_probabilities(exact, ids)
    stored = engine.target.storage if floats is None else None
    against = f"{stored.name} weights as floats" if stored else "float weights"
    said = f"against {against}, over {len(ids)} {what}, {_distance(theirs, ours)}"
    said += f", perplexity {_perplexity(ours, ids):.4g} (of floats {_perplexity(theirs, ids):.4g})"
    if floats is None:
        return said
    build, kept = engine.build, engine.target.storage
    if kept is not None:
        build = replace(build, weight_group_size=kept.usual.group_size)
    plain = CausalLM(config, dtype, formats=network_formats(build, None))
    plain.load_weights(source)
    nearest = log_probabilities(plain, ids)
    return (
        f"{said}; rounded to the nearest they would be at {_distance(theirs, nearest)}, perplexity "
        f"{_perplexity(nearest, ids):.4g}"
    )


def draft_report(engine: EngineConfig, rounded: Sequence[CausalLM], found: DraftCheckpoint) -> str:
    """One line: how often a drafting language model proposes the same with its quantised weights
    (see `of_ranks`) as with its checkpoint's. The rest costs accepted drafts, and nothing else."""
    dtype = built_dtype(engine)
    size = matrix_bytes(CausalLM.matrices(found.config), IN_PANELS, dtype)
    if size > MAX_COMPARED_BYTES:
        return f"not compared: {size / 2**30:.1f} GiB of float weights are too many to load"
    exact = CausalLM(replace(found.config, ropes=rounded[0].config.ropes), dtype)
    exact.load_weights(found)
    ids, what = fixed_ids(found.path, found.config)
    ours, theirs = of_ranks(rounded, ids), log_probabilities(exact, ids)
    said = f"over {len(ids)} {what}, {_distance(theirs, ours)} as its checkpoint's weights say"
    proposed = rounded[0].token_map
    if proposed is not None:
        share = torch.isin(ids, proposed).double().mean()
        said += f"; {share:.1%} of them are among the {len(proposed)} that it proposes"
    return said


def cache_report(engine: EngineConfig, target: Sequence[CausalLM], tokenizer: Path) -> str:
    """One line: what 8-bit K/V does to the target's next-token probabilities (see `of_ranks`). The
    same ids run through the same weights with both kinds of caches."""
    own, floats = engine.target, engine.target.with_caches(None)
    ids, what = fixed_ids(tokenizer, own, NUM_CACHED)
    ours, theirs = (of_ranks(target, ids, kept) for kept in (own, floats))
    return f"against {engine.build.dtype}, over {len(ids)} {what}, {_distance(theirs, ours)}"


def _distance(theirs: Tensor, ours: Tensor) -> str:
    """Divergence of log probabilities ``[T, V]`` from the exact ones."""
    divergence = (theirs.exp() * (theirs - ours)).sum(-1).mean()
    agreement = (ours.argmax(-1) == theirs.argmax(-1)).double().mean()
    return (
        f"KL divergence {divergence:.2e} nats a token, the same most probable token at "
        f"{agreement:.1%}"
    )


def _perplexity(log_probabilities: Tensor, ids: Tensor) -> float:
    """Perplexity of each token but the first, given those before it."""
    found = log_probabilities[:-1].gather(1, ids[1:, None])
    return float(torch.exp(-found.mean())) if len(ids) > 1 else 1.0


def fixed_ids(folder: Path, model: ModelConfig, most: int = NUM_TOKENS) -> tuple[Tensor, str]:
    """The same ids for a model each time, ``[T] i64``, and a description: tokens of a text if the
    checkpoint has a tokenizer, otherwise random ones."""
    count = min(most, model.usual_sequence)
    if has_tokenizer(folder):
        # What repeats itself is too easy: a long text goes on with one that is always there.
        text = _TEXT if most <= NUM_TOKENS else _TEXT + Path(__file__).read_text(encoding="utf-8")
        try:
            ids = read_tokenizer(folder)(text)["input_ids"][:count]
        except CheckpointError as error:
            logger.warning("%s", error)
        else:
            if ids and max(ids) < model.vocab_size:
                return torch.tensor(ids), "tokens of a text"
    noise = torch.Generator().manual_seed(0)
    return torch.randint(model.vocab_size, (count,), generator=noise), "random tokens"


@torch.no_grad()
def log_probabilities(model: CausalLM, ids: Tensor, kept: ModelConfig | None = None) -> Tensor:
    """Log probabilities of the next token after each of ``ids [T] i64``: ``[T, V] f64``. ``kept``:
    the model's caches, if they are not its own."""
    rows, caches = whole_texts(model, [len(ids)], kept)
    logits = model(ids, rows, torch.arange(len(ids)), caches)[0]
    return torch.log_softmax(logits.double(), dim=-1)


def of_ranks(parts: Sequence[CausalLM], ids: Tensor, kept: ModelConfig | None = None) -> Tensor:
    """`log_probabilities` of a network, or of what all ranks have of one: they are threads here."""
    if len(parts) == 1:
        return log_probabilities(parts[0], ids, kept)
    memory = os.memfd_create("trtspec-ranks")
    os.ftruncate(memory, RankGroup.memory_bytes(len(parts)))
    groups = [RankGroup(memory, rank, len(parts)) for rank in range(len(parts))]
    os.close(memory)

    def run(part: CausalLM, group: RankGroup) -> Tensor:
        assert part.ranks is not None, "it is split"
        part.ranks.group.copy_(group.tensor)
        try:
            return log_probabilities(part, ids, kept)
        except BaseException:
            group.end()  # the others would wait
            raise
        finally:
            part.ranks.group.zero_()

    with ThreadPoolExecutor(len(parts)) as pool:
        found, *_ = list(pool.map(run, parts, groups))
    return found


def whole_texts(
    model: CausalLM, lengths: Sequence[int], kept: ModelConfig | None = None
) -> tuple[Rows, Caches]:
    """The rows of whole texts of that many tokens, one after the other, and caches for them: those
    of ``kept``, or the model's."""
    blocks = [-(-length // _BLOCK) for length in lengths]
    first = [sum(blocks[:i]) for i in range(len(blocks))]
    tables = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for table, begin, count in zip(tables, first, blocks, strict=True):
        table[:count] = torch.arange(begin, begin + count)
    own = [torch.arange(length) for length in lengths]
    slots = [begin * _BLOCK + each for begin, each in zip(first, own, strict=True)]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    count = len(lengths)
    rows = PackedRows(
        positions=torch.cat(own),
        slot_mapping=torch.cat(slots),
        block_tables=tables,
        query_start=ends.to(torch.int32),
        context_lens=torch.zeros(len(lengths), dtype=torch.int32),
        is_tree=torch.zeros(len(lengths), dtype=torch.bool),
        tree_mask=torch.zeros(sum(lengths), 1, dtype=torch.int64),
    )
    config, num_rows = kept or model.config, sum(lengths)
    sizes = config, sum(blocks), _BLOCK, model.dtype
    caches = new_caches(*sizes, num_states=count + 1, num_rows=num_rows)
    if keeps_states(config):
        return StateRows(rows, torch.arange(count, dtype=torch.int32)), caches
    return rows, caches
