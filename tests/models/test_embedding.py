"""Tables of embeddings in fewer bits: rows are those of the dequantised table, and no others are
read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from checkpoint_converters import load_checkpoint
from trtspec.builder.accuracy import log_probabilities
from trtspec.config.embedding_spec import PerLayerSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.config.storage import WeightStorage
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.registry import IN_PANELS, IN_ROWS
from trtspec.models.causal_lm import CausalLM
from trtspec.models.embedding import Embedding
from trtspec.models.per_layer import PerLayerEmbedding
from trtspec.models.vocabulary import TargetParts
from trtspec.ops.linear_quantised import (
    GROUP_SIZES,
    QuantisedWeights,
    dequantise,
    dequantised_rows,
    pack_groups,
    pack_values,
)

from ..e2e.helpers import random_prompt
from ..tiny_config import tiny_config
from .tiny_hf import tiny_model

EIGHT, FOUR = QuantisedFormat(WeightStorage(8)), QuantisedFormat(WeightStorage(4, 16, "float16"))
V, K = 203, 72
IDS = torch.tensor(random_prompt(7, 30))


def save(case: str, folder: Path) -> PreTrainedModel:
    model = tiny_model(case)
    model.save_pretrained(folder)
    return model


def loaded(folder: Path, formats: NetworkFormats) -> CausalLM:
    checkpoint = load_checkpoint(folder)
    model = CausalLM(checkpoint.config, torch.float32, formats=formats)
    model.load_weights(checkpoint)
    return model


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", GROUP_SIZES)
def test_rows_are_those_of_the_dequantised_table(bits: int, group_size: int) -> None:
    noise = torch.Generator().manual_seed(bits)
    low = -(1 << bits - 1)
    codes = torch.randint(low, -low, (V, K), generator=noise).to(torch.int8)
    groups = (V, -(-K // group_size) if group_size else 1)
    scales = torch.randn(groups, generator=noise).half()
    offsets = torch.randn(groups, generator=noise).half()
    zeros = torch.randint(low, -low, groups, generator=noise).to(torch.int8)
    order = torch.randperm(K, generator=noise).to(torch.int32)
    plain = QuantisedWeights(pack_values(codes, bits), pack_groups(scales))
    ids = torch.randint(V, (3, 5), generator=noise).flatten()
    for weights in (
        plain,
        replace(plain, zeros=pack_groups(zeros)),
        replace(plain, offsets=pack_groups(offsets)),
        replace(plain, permutation=order, input_scales=torch.rand(K, generator=noise)),
    ):
        table = dequantise(weights, bits, group_size, V, K)
        rows = dequantised_rows(weights, bits, group_size, ids, K)
        assert torch.equal(rows, table[ids])
    assert dequantised_rows(plain, bits, group_size, ids[:0], K).shape == (0, K)


@pytest.mark.parametrize("case", ["llama", "qwen2_tied"])
@pytest.mark.parametrize("head", [None, EIGHT, FOUR])
def test_a_model_is_that_with_the_dequantised_table(
    tmp_path: Path, case: str, head: QuantisedFormat | None
) -> None:
    """With a head that is float, rounded alike (a tied one is then the table) or otherwise."""
    save(case, tmp_path)
    own = head or IN_PANELS.head
    formats = replace(IN_PANELS, head=own, embedding=EIGHT, target_head=own, target_embedding=EIGHT)
    rounded = loaded(tmp_path, formats)
    exact = loaded(tmp_path, replace(formats, embedding=None))
    tied = exact.config.head.tied
    if tied and head in (None, EIGHT):
        assert rounded.embed is None
    else:
        assert rounded.embed is not None and rounded.embed.rounding.relative < 0.01
        assert {n for n, _ in rounded.embed.named_buffers()} == {"packed", "scales"}
    if head is None and tied:
        rows = exact.lm_head.gather_rows(IDS)
    else:
        kept = rounded.lm_head if rounded.embed is None else rounded.embed
        buffers = dict(kept.named_buffers())
        table = EIGHT.dequantised(buffers, exact.config.vocab_size, exact.config.hidden_size)
        assert exact.embed is not None
        assert not torch.equal(exact.embed.weight, table)
        exact.embed.weight.copy_(table)
        rows = table[IDS]
    assert torch.equal(log_probabilities(rounded, IDS), log_probabilities(exact, IDS))

    # What a draft borrows are the same rows.
    borrowed = TargetParts(exact.config, torch.float32, embed=True, head=False, formats=formats)
    state = rounded.state_dict()
    borrowed.load_state_dict({name: state[name] for name in borrowed.state_dict()})
    assert torch.equal(borrowed.embedding(IDS), rows)


def test_other_rows_are_not_read() -> None:
    table = Embedding(V, K, torch.bfloat16, format=EIGHT)
    noise = torch.Generator().manual_seed(1)
    table.load({"embed.weight": torch.randn(V, K, generator=noise)}, "embed.weight")
    ids = torch.tensor([0, 17, 202])
    before = table(ids)
    assert before.dtype == torch.bfloat16 and before.shape == (3, K)
    scales, kept = table.get_buffer("scales"), torch.zeros(208, dtype=torch.bool)
    kept[ids] = True
    scales.masked_fill_(~kept.view(13, 1, 16), float("nan"))
    assert torch.equal(table(ids), before)


def test_tokens_that_have_no_per_layer_row() -> None:
    """Padding of the vocabulary reads the first token's."""
    config = tiny_config("Gemma4ForCausalLM", V, 16, 24, 2, 4, 2, 8, 1e-5, 64)
    module = PerLayerEmbedding(
        config, PerLayerSpec(6, NormSpec(1e-5), rows=5), torch.float32, IN_ROWS
    )
    assert module.embed.weight.shape == (5, 12)
    for buffer in module.buffers():
        buffer.uniform_(generator=torch.Generator().manual_seed(0))
    first, last, none, other = torch.stack(
        module(torch.tensor([0, 4, 5, V - 1]), torch.ones(4, 16)), 1
    )
    assert torch.equal(none, first) and torch.equal(other, first) and not torch.equal(last, first)
