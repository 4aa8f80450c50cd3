"""mask_logits against its reference: the same bits, whatever the logits are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.ops.logits_mask import (
    MaskColumns,
    mask_logits,
    mask_logits_reference,
    pack_bits,
    unpack_bits,
)

BIASES = [0.1, -0.3, 7.7, 1e8, -torch.inf]
LOGITS = [0.3, -5.0, 0.1, torch.nan, torch.inf, -torch.inf]


@st.composite
def calls(draw: st.DrawFn) -> tuple[torch.Tensor, MaskColumns]:
    rows, vocab = draw(st.integers(1, 3)), draw(st.integers(1, 70))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits = torch.tensor(LOGITS)[torch.randint(len(LOGITS), (rows, vocab), generator=seed)]
    mask = MaskColumns()
    if draw(st.booleans()):
        places = st.tuples(st.integers(0, rows - 1), st.integers(-1, min(vocab, 5)))
        held = torch.tensor(sorted(draw(st.lists(places, max_size=12)))).view(-1, 2)
        values = torch.tensor(BIASES)[torch.randint(len(BIASES), (len(held),), generator=seed)]
        mask = MaskColumns(None, held[:, 0].long(), held[:, 1].long(), values)
    if draw(st.booleans()):
        count = draw(st.integers(1, vocab + 40))
        mask = mask._replace(allowed=pack_bits(torch.rand(rows, count, generator=seed) < 0.6))
    return logits, mask


@given(calls())
@settings(max_examples=150, deadline=None)
def test_equals_the_reference(call: tuple[torch.Tensor, MaskColumns]) -> None:
    logits, mask = call
    expected = logits.clone()
    mask_logits_reference(expected, mask)
    mask_logits(logits, mask)
    assert torch.equal(logits.view(torch.int32), expected.view(torch.int32))


def test_equal_ids_add_up_in_their_order_and_a_ban_stays() -> None:
    """(0.1 + 1e8) - 1e8 is not 0.1; what must not come does not, though its logit is no number."""
    rows, ids = torch.tensor([0, 0, 0, 0]), torch.tensor([1, 1, 2, 2])
    logits = torch.tensor([[5.0, 0.1, torch.nan]])
    values = torch.tensor([1e8, -1e8, -torch.inf, 3.0])
    mask_logits(logits, MaskColumns(None, rows, ids, values))
    assert logits.tolist() == [[5.0, 0.0, -torch.inf]]


def test_refusals() -> None:
    logits = torch.zeros(2, 40)
    one, value = torch.tensor([1]), torch.ones(1)
    for mask, message in (
        (MaskColumns(torch.zeros(3, 2, dtype=torch.int32)), r"allowed must have shape \[2, 2\]"),
        (MaskColumns(torch.zeros(2, 2)), "allowed must be Int"),
        (MaskColumns(None, one), "biases need rows, ids and values"),
        (MaskColumns(None, one, one, torch.ones(2)), "bias_values must have shape"),
        (MaskColumns(None, one * 2, one, value), "there are 2 rows, but a bias is of row 2"),
        (MaskColumns(None, -one, one, value), "there are 2 rows, but a bias is of row -1"),
    ):
        with pytest.raises(RuntimeError, match=message):
            mask_logits(logits, mask)
    with pytest.raises(RuntimeError, match="contiguous"):
        mask_logits(logits.T, MaskColumns())
    assert not logits.any()


@given(st.integers(1, 4), st.integers(1, 70), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_packed_bits(rows: int, count: int, seed: int) -> None:
    """Word by word as grammars pack them."""
    allowed = torch.rand(rows, count, generator=torch.Generator().manual_seed(seed)) < 0.5
    words = pack_bits(allowed)
    assert words.dtype == torch.int32 and words.shape == (rows, -(-count // 32))
    bits = [[int(words[r, v // 32]) >> v % 32 & 1 for v in range(count)] for r in range(rows)]
    assert bits == allowed.int().tolist()
    assert torch.equal(unpack_bits(words)[:, :count], allowed)
