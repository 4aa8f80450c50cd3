"""DFlash2 networks against plain loops: convolutions, candidates and paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.speculative.block.dflash2 import DFlash2Config, DFlash2Draft

from .dflash_reference import BLOCK, DenseDFlash, H, V, block
from .path_trees import (
    ROOT,
    SAMPLING,
    SHAPES,
    STATES,
    Logits,
    assert_same_tree,
    expected,
    loaded,
    rolled_out,
)

R, K = 5, 4
SIZES = {"conv_kernel_size": 2, "conv_group_size": 6, "selector_rank": R, "selector_top_k": K}
CASES = {
    "usual": block(DFlash2Config, **SIZES),
    "three taps": block(DFlash2Config, **{**SIZES, "conv_kernel_size": 3, "conv_group_size": 24}),
    "causal window": block(
        DFlash2Config, {"windows": 7}, **{**SIZES, "causal_layers": (True, True)}
    ),
    "anchor": block(DFlash2Config, anchor_predicts=True, **SIZES),
}


def own_tensors(config: DFlash2Config) -> dict[str, Tensor]:
    noise, taps = torch.Generator().manual_seed(8), config.conv_kernel_size
    tensors = {n: torch.randn(s, generator=noise) for n, s in config.own_parts.items()}
    for layer in range(config.decoder.num_layers):
        for part in ("attention_conv", "mlp_conv"):
            name = f"layers.{layer}.{part}"
            tensors[f"{name}.base"] = torch.randn(2, taps, H, generator=noise) / 2
            weight = torch.randn(config.conv_outputs, H, generator=noise) / 8
            tensors[f"{name}.kernel.weight"] = weight
    return tensors


@dataclass(frozen=True)
class DenseDFlash2(DenseDFlash):
    """The backbone with convolutions, tap by tap and channel by channel."""

    config: DFlash2Config

    def sublayer(self, layer: int, name: str, x: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
        part = {"attn": "attention_conv", "mlp": "mlp_conv"}[name]
        weights = self._weights(f"layers.{layer}.{part}", x)
        return _convolved(of(_convolved(x, weights[0])), weights[1])

    def _weights(self, name: str, x: Tensor) -> Tensor:
        """``[2, rows, taps, H]``."""
        config, t = self.config, self.tensors
        taps, size = config.conv_kernel_size, config.conv_group_size
        added = (x @ t[f"{name}.kernel.weight"].T).view(len(x), 2, taps, H // size)
        weights = torch.empty(2, len(x), taps, H)
        for side in (0, 1):
            for channel in range(H):
                own = t[f"{name}.base"][side, :, channel]
                weights[side, :, :, channel] = own + added[:, side, :, channel // size]
        return weights


def _convolved(x: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(weights.shape[1], row + 1)):
            out[row] += weights[row, tap] * x[row - tap]
    return out


def walk(config: DFlash2Config, dense: DenseDFlash2, states: Tensor) -> Logits:
    t, first = dense.tensors, int(not config.anchor_predicts)
    rows = dense.rows(states, ROOT)[first:]
    base = dense.of_rows(rows)

    def logits(path: tuple[int, ...]) -> tuple[Tensor, None]:
        depth, previous = len(path), (ROOT, *path)[-1]
        found = torch.full((V,), -torch.inf)
        gate = t["selector.predecessors"][previous] * (t["selector.projection"] @ rows[depth])
        for candidate in base[depth].argsort(descending=True)[: config.selector_top_k].tolist():
            pair = gate @ t["selector.successors"][candidate]
            found[candidate] = base[depth, candidate] + pair
        return found, None

    return logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_rollouts(case: str, shape: str) -> None:
    config = CASES[case]
    draft, plain = loaded(DFlash2Draft, config, own_tensors(config))
    dense = DenseDFlash2(config, plain.tensors, plain.target)
    states = 2 * torch.randn(STATES, config.hidden_in, generator=torch.Generator().manual_seed(3))
    for request in range(len(SAMPLING)):
        found = rolled_out(draft, SHAPES[shape], states, request)
        nodes = expected(walk(config, dense, states), SHAPES[shape], request, None)
        assert_same_tree(nodes, found, 1e-3)


def test_the_convolutions_count() -> None:
    """The reference without them is another network."""
    config = CASES["usual"]
    draft, plain = loaded(DFlash2Draft, config, own_tensors(config))
    states = 2 * torch.randn(STATES, config.hidden_in)
    found = rolled_out(draft, SHAPES["chain"], states, 0)[2]
    nodes = expected(walk(config, plain, states), SHAPES["chain"], 0, None)  # type: ignore
    assert not torch.allclose(found, torch.tensor([float(n.score) for n in nodes]), atol=1e-2)


def test_nothing_but_candidates_is_drafted() -> None:
    config = dataclasses.replace(CASES["usual"], selector_top_k=1)
    draft, plain = loaded(DFlash2Draft, config, own_tensors(config))
    states = torch.randn(STATES, config.hidden_in)
    tokens, _, scores = rolled_out(draft, SHAPES["dynamic"], states, 0)
    dense = DenseDFlash2(config, plain.tensors, plain.target)
    best = dense.logits(states, ROOT)[1:].argmax(-1)
    assert tokens[scores.isfinite()].tolist() == best[:4].tolist()
    assert (scores[scores.isfinite()] == 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv_kernel_size": 0}, "conv_kernel_size=0 must be between 1 and the block_size 6"),
        ({"conv_kernel_size": BLOCK + 1}, "conv_kernel_size=7 must be between 1"),
        ({"conv_group_size": 7}, f"conv_group_size=7 does not divide the hidden size {H}"),
        ({"selector_top_k": V + 1}, f"selector_top_k={V + 1} between 1 and the {V} tokens"),
        ({"selector_rank": 0}, "selector_rank=0 must be at least 1"),
    ],
)
def test_configs(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CASES["usual"], **changes)
    for config in CASES.values():
        assert DFlash2Config.from_dict(config.to_dict()) == config
