"""moe against its reference; that no other row changes a row's bits, and that only the experts that
rows chose are read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from trtspec.ops import moe, moe_reference, pack_linear
from trtspec.ops.linear_quantised import pack_floats, pack_groups, pack_values, round_weights
from trtspec.ops.moe import ACTIVATIONS, Coding, ExpertWeights, Gating

from .each_isa import each_isa

isa = each_isa("generic", "avx2", "avx512", "avx512_bf16", "amx")
EXPERTS, TOP_K, HIDDEN, INNER = 7, 3, 96, 72
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 5e-3}
CODINGS = {
    "plain": Coding(),
    "codes4": Coding(4, 32, input_bits=8),
    "codes8": Coding(8, 0),
    "codes8 in groups": Coding(8, 32, input_bits=8),
    "table": Coding(4, 32, input_bits=8),
    "floats8": Coding(8, 0, e4m3=True),
}
SILU = Gating()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers(kind: str, outputs: int, depth: int, dtype: torch.dtype, seed: int) -> ExpertWeights:
    weights = (random(EXPERTS, outputs, depth, seed=seed) / depth**0.5).to(dtype)
    bias = random(EXPERTS, outputs, seed=seed + 1).to(dtype)
    coding = CODINGS[kind]
    if kind == "plain":
        return ExpertWeights(torch.stack([pack_linear(w) for w in weights]), bias=bias)
    if coding.e4m3:
        small = torch.stack([pack_floats(w.to(torch.float8_e4m3fn)) for w in weights])
        scales = torch.stack([pack_groups(torch.full((outputs, 1), 1.5))] * EXPERTS)
        return ExpertWeights(small, scales, bias=bias)
    rounded = [round_weights(w.float(), coding.bits, coding.group_size) for w in weights]
    pairs = [(pack_values(codes, coding.bits), pack_groups(s)) for codes, s in rounded]
    packed, scales = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    zeros = None
    if kind == "codes4":
        zeros = random(*scales.shape, seed=seed + 2).sign().to(torch.int8)
    table = random(EXPERTS, 16, seed=seed + 3).mul(4).char() if kind == "table" else None
    return ExpertWeights(packed, scales, zeros, bias=bias, table=table)


@dataclass(frozen=True)
class Call:
    x: Tensor
    chosen: Tensor
    weights: Tensor
    residual: Tensor
    up: ExpertWeights
    down: ExpertWeights
    coding: Coding
    gating: Gating = SILU

    @classmethod
    def make(cls, kind: str, dtype: torch.dtype, rows: int = 12) -> Call:
        scores = random(rows, EXPERTS - 2, seed=1)  # the last two experts are never chosen
        weights, chosen = scores.topk(TOP_K)
        return cls(
            random(rows, HIDDEN, seed=2).to(dtype),
            chosen,
            weights,
            random(rows, HIDDEN, seed=3).to(dtype),
            layers(kind, 2 * INNER, HIDDEN, dtype, seed=4),
            layers(kind, HIDDEN, INNER, dtype, seed=6),
            CODINGS[kind],
        )

    def run(self, rows: slice | Tensor = slice(None), op=moe) -> Tensor:  # type: ignore[no-untyped-def]
        result: Tensor = op(
            self.x[rows],
            self.chosen[rows],
            self.weights[rows],
            INNER,
            self.up,
            self.down,
            self.coding,
            self.gating,
            self.residual[rows],
        )
        return result


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", CODINGS)
def test_equals_reference_and_rows_do_not_change_each_other(
    isa: str, kind: str, dtype: torch.dtype
) -> None:
    call = Call.make(kind, dtype)
    got = call.run()
    # An input that is rounded to 8 bits may fall to the other side.
    rounds = call.coding.input_bits > 0
    tolerance = max(TOLERANCE[dtype] * (1 + rounds), 2e-2 * rounds)
    torch.testing.assert_close(got, call.run(op=moe_reference), rtol=tolerance, atol=tolerance)
    assert not torch.equal(got, call.residual)
    for rows in (slice(0, 1), slice(3, 8), torch.tensor([11, 0, 5])):
        assert torch.equal(call.run(rows), got[rows])
    assert call.run(slice(0, 0)).shape == (0, HIDDEN)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_limits_and_offsets(isa: str, activation: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        call = Call.make("plain", dtype)
        plain = replace(call, gating=Gating(activation)).run()
        cut = replace(call, gating=Gating(activation, limit=0.5, offset=1.0))
        for each, got in ((replace(call, gating=Gating(activation)), plain), (cut, cut.run())):
            want = each.run(op=moe_reference)
            torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert not torch.equal(plain, cut.run())
        assert torch.equal(cut.run(slice(4, 6)), cut.run()[4:6])


def test_only_chosen_experts_count() -> None:
    call = Call.make("plain", torch.float32)
    want = call.run()
    for part in (call.up, call.down):
        assert part.bias is not None
        part.packed[EXPERTS - 2 :] = float("nan")
        part.bias[EXPERTS - 2 :] = float("nan")
    assert torch.equal(call.run(), want)
    call.up.packed[int(call.chosen[0, 0])] = float("nan")
    assert call.run()[0].isnan().all()


@pytest.mark.parametrize("kind", ["plain", "codes4"])
def test_ranks_that_share_experts_out_sum_up_to_all(kind: str) -> None:
    """An expert that is at another rank adds nothing here; a row may have several such."""
    call = replace(Call.make(kind, torch.float32), residual=torch.zeros(12, HIDDEN))
    total = torch.zeros(12, HIDDEN)
    for first, end in ((0, 3), (3, EXPERTS)):
        own = call.chosen - first
        chosen = torch.where((own >= 0) & (own < end - first), own, -1)
        up, down = (
            ExpertWeights(*(None if part is None else part[first:end] for part in each))
            for each in (call.up, call.down)
        )
        here = replace(call, chosen=chosen, up=up, down=down)
        torch.testing.assert_close(here.run(), here.run(op=moe_reference), rtol=2e-2, atol=2e-2)
        total += here.run()
    torch.testing.assert_close(total, call.run(), rtol=1e-4, atol=1e-4)


def test_refuses_experts_that_are_none() -> None:
    call = Call.make("plain", torch.float32)
    for wrong, message in ((EXPERTS, "chose expert 7, there are 7"), (-2, "chose expert -2")):
        chosen = call.chosen.clone()
        chosen[5, 1] = wrong
        with pytest.raises(ValueError, match=f"row 5 {message}"):
            replace(call, chosen=chosen).run()
    chosen = call.chosen.clone()
    chosen[2, 1] = chosen[2, 0]
    with pytest.raises(ValueError, match=r"row 2 chose expert \d twice"):
        replace(call, chosen=chosen).run()
    with pytest.raises(RuntimeError, match=r"weights must have shape \[12, 3\]"):
        replace(call, weights=call.weights[:, :2]).run()
    with pytest.raises(RuntimeError, match="down must have shape"):
        replace(call, down=call.up).run()
