"""Mask rows behind packed rows against rows packed with them, and rollouts of such rows."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trtspec.backends.packing import RowGroup, pack
from trtspec.config.kv import CacheLayout
from trtspec.config.tree import TreeShape
from trtspec.errors import CheckpointError, ConfigError
from trtspec.executor.engines.buckets import Bucket, extend, pad
from trtspec.models.causal_lm import CausalLM, new_caches
from trtspec.models.rows import PackedRows
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.parallel.graphs import PEagleDraft
from trtspec.speculative.parallel.rollout import ParallelRollout
from trtspec.speculative.parallel.shape import PardConfig, PEagleConfig

from ...tiny_config import tiny_config
from ..tree_reference import columns

LAYOUT = CacheLayout(tokens_per_block=4, blocks_per_sequence=6, mask_words=1)
MODEL = tiny_config("LlamaForCausalLM", 70, 16, 24, 2, 2, 1, 8, 1e-5, 64)
MASK = 69


def packed(groups: list[RowGroup]) -> tuple[Tensor, PackedRows, Tensor]:
    (ids, *rows), last_rows, *_ = pack(groups, LAYOUT)
    return ids, PackedRows(*rows), last_rows


def rollout(steps: int, model: CausalLM) -> ParallelRollout:
    return ParallelRollout(model, TreeShape(1, steps, steps + 1), LAYOUT.tokens_per_block, MASK)


@pytest.fixture(scope="module")
def model() -> CausalLM:
    torch.manual_seed(0)
    model = CausalLM(MODEL, torch.float32)
    for name, buffer in model.named_buffers():
        if "inv_freq" not in name:
            buffer.copy_(torch.randn(buffer.shape) / 3)
    return model


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_masks_stand_where_packed_ones_would(data: st.DataObject) -> None:
    """Requests of any number of rows, blocks that end in the middle of the masks, padding behind:
    the same rows as if the host had packed the masks as tokens."""
    steps = data.draw(st.integers(1, 6))
    groups = []
    for request in range(data.draw(st.integers(1, 4))):
        context = data.draw(st.integers(0, 9))
        tokens = data.draw(st.lists(st.integers(0, 68), min_size=1, max_size=5))
        needed = -(-(context + len(tokens)) // 4)
        blocks = torch.arange(data.draw(st.integers(needed, 6)), dtype=torch.int32) + 10 * request
        groups.append(RowGroup(tokens, context, blocks))
    rows, last, *_ = pack(groups, LAYOUT)
    padding = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 4))
    bucket = Bucket(len(groups) + padding[0], len(rows[0]) + padding[1])
    ids, *fields = pad(rows, bucket)
    last_rows = extend(last, bucket.requests, 0)
    masked = rollout(steps, CausalLM(MODEL, torch.float32))._with_masks(
        PackedRows(*fields), last_rows
    )
    found_ids = torch.where(masked.is_mask, MASK, ids[masked.source])

    masks = [MASK] * (steps - 1)
    with_blocks = [
        RowGroup([*g.tokens, *masks], g.context, extend(g.blocks, 6, -1)) for g in groups
    ]
    wanted, last_masks, *_ = pack(with_blocks, LAYOUT)
    total = len(wanted[0])
    assert len(found_ids) == total + padding[1] + padding[0] * (steps - 1)
    assert torch.equal(found_ids[:total], wanted[0])
    assert torch.equal(masked.rows.positions[:total], wanted[1])
    # Where there is no block, the packed slot is one before the block's begin: nothing is written.
    slots = torch.where(wanted[2] < 0, -1, wanted[2])
    assert torch.equal(masked.rows.slot_mapping[:total], slots)
    assert (masked.rows.slot_mapping[total:] == -1).all()
    count = len(groups)
    assert torch.equal(masked.rows.query_start[: count + 1], wanted[4])
    assert torch.equal(masked.rows.context_lens[:count], wanted[5])
    guesses = last_masks[:, None] - (steps - 1) + torch.arange(steps)
    assert torch.equal(masked.guesses[:count], guesses)
    assert masked.guesses.max() < len(found_ids)


def test_what_is_written(model: CausalLM) -> None:
    """The rows of the request and D - 1 behind it, of no other block; logits of the D rows."""
    caches = new_caches(MODEL, 12, 4, torch.float32)
    groups = [
        RowGroup([3, 4, 5], 2, torch.tensor([7, 2, 5], dtype=torch.int32)),
        RowGroup([6], 0, torch.tensor([1], dtype=torch.int32)),
    ]
    ids, rows, last_rows = packed(groups)
    sampling = columns((0.0, 0, 1.0, 0.0, 0, 0, 0), (0.0, 0, 1.0, 0.0, 0, 0, 0))
    with torch.no_grad():
        tokens, parents, _ = rollout(4, model)(ids, rows, last_rows, sampling, None, caches)
    written = {int(slot) for slot in caches[0][0].flatten(2).any(2).flatten().nonzero()}
    places = [7 * 4 + 2, 7 * 4 + 3, *range(8, 12), *range(4, 8)]
    assert written == set(places)
    assert parents.tolist() == [[-1, 0, 1, 2]] * 2 and tokens.shape == (2, 4)
    # A second pass over one row more finds the masks overwritten: it is that of a fresh cache.
    more = [RowGroup([9], 5, groups[0].blocks)]
    ids, rows, last_rows = packed(more)
    one = columns((0.7, 0, 1.0, 0.0, 3, 0, 0))
    with torch.no_grad():
        again = rollout(4, model)(ids, rows, last_rows, one, None, caches)
        fresh = new_caches(MODEL, 12, 4, torch.float32)
        for buffer, new in zip(chain(*caches), chain(*fresh), strict=True):
            new[7], new[2, :1] = buffer[7], buffer[2, :1]  # positions 0 to 4
        fresh_result = rollout(4, model)(ids, rows, last_rows, one, None, fresh)
    for found, expected in zip(again, fresh_result, strict=True):
        assert torch.equal(found, expected)


def test_the_mask_state_is_a_weight() -> None:
    """It comes from the checkpoint; without it there is no network."""
    config = PEagleConfig(3, MODEL, 16, (0, 1), 70, own_embedding=True, mask_token=5)
    network = PEagleDraft(config, MODEL, torch.float32)
    assert network.mask_hidden.shape == (32,) and "mask_hidden" in network.state_dict()
    with pytest.raises(CheckpointError, match="no tensor"):
        network.load_weights(SimpleNamespace(config=config, tensors={}), {})


@pytest.mark.parametrize("token", [-1, 70])
def test_the_mask_must_be_in_the_embedding(token: int) -> None:
    message = rf"mask token {token} is outside the draft's embedding of 70 tokens.*0 and 69"
    with pytest.raises(ConfigError, match=message):
        PardConfig(*vars(MODEL).values(), mask_token=token)
    with pytest.raises(ConfigError, match=message):
        PEagleConfig(3, MODEL, 16, (0, 1), 70, mask_token=token)


def test_p_eagle_is_eagle_3() -> None:
    with pytest.raises(ConfigError, match="P-EAGLE is an EAGLE-3 network, not one of version 1"):
        PEagleConfig(1, MODEL, 16, (2,), 70, mask_token=3)
    assert isinstance(PEagleConfig(3, MODEL, 16, (0,), 70, mask_token=3), EagleConfig)
