"""Medusa heads against plain torch, and their rollout against trees grown node by node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trtspec.config.tree import TreeShape
from trtspec.engine.graphs import own_state, with_borrowed
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.stored import StoredWeight
from trtspec.models.causal_lm import CausalLM
from trtspec.models.layer_facts import Matrix
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.medusa.choices import default_choices
from trtspec.speculative.medusa.network import MedusaHeads
from trtspec.speculative.medusa.rollout import HeadsRollout
from trtspec.speculative.medusa.shape import MedusaConfig

from ...tiny_config import changed, tiny_config
from ..tree_reference import Children, Path, assert_equal_trees, columns, grow_product

V, H = 70, 16
TARGET = tiny_config("LlamaForCausalLM", V, H, 24, 2, 2, 1, 8, 1e-5, 64)


def medusa(heads: int = 3, layers: int = 1, own_head: bool = True) -> MedusaConfig:
    return MedusaConfig(heads, layers, H, V, (TARGET.num_layers,), own_head)


def checkpoint(config: MedusaConfig, seed: int = 0) -> SimpleNamespace:
    noise = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for h in range(config.num_heads):
        for layer in range(config.num_layers):
            tensors[f"heads.{h}.blocks.{layer}.weight"] = torch.randn(H, H, generator=noise)
            tensors[f"heads.{h}.blocks.{layer}.bias"] = torch.randn(H, generator=noise)
        if config.own_head:
            tensors[f"heads.{h}.lm_head.weight"] = torch.randn(V, H, generator=noise)
    return SimpleNamespace(config=config, tensors=tensors)


def plain(source: SimpleNamespace, hidden: Tensor, head: Tensor) -> list[Tensor]:
    """The logits of every head, as the paper writes them; ``head``: the target's matrix."""
    config, tensors = source.config, source.tensors
    found = []
    for h in range(config.num_heads):
        x = hidden
        for layer in range(config.num_layers):
            name = f"heads.{h}.blocks.{layer}"
            x = x + F.silu(F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"]))
        found.append(F.linear(x, tensors.get(f"heads.{h}.lm_head.weight", head)))
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("layers", "own_head"), [(1, True), (1, False), (3, True), (0, True)])
def test_marginals(layers: int, own_head: bool, tied: bool) -> None:
    target = changed(TARGET, tied=tied)
    source = checkpoint(medusa(layers=layers, own_head=own_head))
    heads = MedusaHeads(source.config, target, torch.float32)
    heads.load_weights(source)
    matrix = torch.randn(V, H, generator=torch.Generator().manual_seed(9))
    language_model = CausalLM(target, torch.float32)
    language_model.lm_head.load([StoredWeight("head.weight", matrix)])
    assert any(name.startswith("target.") for name in heads.state_dict()) == (not own_head)
    weights = with_borrowed(heads, own_state(heads), language_model.state_dict())
    heads.load_state_dict(weights, assign=True)
    hidden = torch.randn(5, H)
    expected = torch.stack(plain(source, hidden, matrix), dim=1)
    torch.testing.assert_close(heads.marginals(hidden), expected, rtol=1e-4, atol=1e-4)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    source = checkpoint(medusa(own_head=True))
    heads = MedusaHeads(source.config, TARGET, torch.float32)
    heads.load_weights(source)
    hidden = torch.randn(9, H)
    together = heads.marginals(hidden)
    for i in range(9):
        assert torch.equal(heads.marginals(hidden[i : i + 1])[0], together[i])


def test_further_heads_are_left_out() -> None:
    source = checkpoint(medusa(heads=4))
    config = source.config.for_steps(2)
    assert config == medusa(heads=2)
    heads = MedusaHeads(config, TARGET, torch.float32)
    heads.load_weights(source)
    hidden = torch.randn(2, H)
    expected = torch.stack(plain(source, hidden, torch.empty(0))[:2], dim=1)
    torch.testing.assert_close(heads.marginals(hidden), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match=r"5 steps take as many Medusa heads, .* has 4"):
        source.config.for_steps(5)


@pytest.mark.parametrize("wrong", [medusa(heads=2), medusa(layers=2), medusa(own_head=False)])
def test_another_checkpoint(wrong: MedusaConfig) -> None:
    with pytest.raises(CheckpointError, match="is not the heads'"):
        MedusaHeads(medusa(), TARGET, torch.float32).load_weights(checkpoint(wrong))


def test_a_missing_tensor() -> None:
    source = checkpoint(medusa())
    del source.tensors["heads.1.blocks.0.bias"]
    with pytest.raises(CheckpointError, match=r"no tensor heads\.1\.blocks\.0\.bias"):
        MedusaHeads(medusa(), TARGET, torch.float32).load_weights(source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"num_layers": -1}, "num_layers=-1 must not be negative"),
        ({"num_layers": 0, "own_head": False}, "would all guess the target's own next token"),
        ({"capture_layers": (1, 2)}, r"read one state, not those of layers \[1, 2\]"),
    ],
)
def test_configs(changes: dict[str, Any], message: str) -> None:
    fields = medusa().to_dict() | changes
    with pytest.raises(ConfigError, match=message):
        MedusaConfig.from_dict(fields)


def test_config_round_trip() -> None:
    config = medusa(own_head=False)
    assert MedusaConfig.from_dict(config.to_dict()) == config
    assert (config.decoder, config.capture_layers) == (None, (2,))
    blocks = [Matrix(H, H, f"heads.{i}.blocks.0") for i in range(3)]
    assert MedusaHeads.matrices(config) == [*blocks, Matrix(V, H)]
    heads = [Matrix(V, H, f"heads.{i}.lm_head", is_head=True) for i in range(3)]
    assert MedusaHeads.matrices(medusa()) == [*blocks, *heads]


class Marginals(nn.Module):
    """Logits that are given."""

    token_map: Tensor | None = None

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits  # [B, D, V]

    def marginals(self, hidden: Tensor) -> Tensor:
        return self.logits[hidden[:, 0].long()]


def children_of(logits: Tensor, sampling: SamplingColumns, request: int) -> Children:
    def children(path: Path, count: int) -> list[tuple[int, np.float32]]:
        row = SamplingColumns(*(column[request : request + 1] for column in sampling))
        row = row._replace(output_index=row.output_index + len(path))
        ids, gains = draft_candidates(logits[request, len(path)][None], *row, None, count)
        return list(zip(ids[0].tolist(), gains[0].clamp(max=0).numpy(), strict=True))

    return children


SHAPES = {
    "chain": TreeShape(1, 4, 5),
    "one step": TreeShape(3, 1, 4),
    "dynamic": TreeShape(4, 4, 20),
    "whole": TreeShape(2, 3, 11),
    "default": TreeShape.static(default_choices(4)),
    "large": TreeShape.static(default_choices(4, 63)),
    "odd": TreeShape.static([[1], [3], [1, 2], [3, 0], [1, 2, 1], [1, 2, 1, 0], [1, 2, 1, 3]]),
}
SAMPLING = columns(
    (0.0, 0, 1.0, 0.0, 0, 0, 0),
    (0.8, 0, 1.0, 0.0, 2, 1, 7),
    (1.0, 3, 0.9, 0.1, -5, 0, 40),  # three survivors at most: children are missing
)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(SHAPES)), seed=st.integers(0, 10_000), ties=st.booleans())
def test_rollouts(name: str, seed: int, ties: bool) -> None:
    shape, noise = SHAPES[name], torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(3, shape.num_steps, 12 if ties else V, generator=noise)
    if ties:
        logits = logits.round() * 5
    if shape.topk > logits.shape[2]:
        return
    rollout = HeadsRollout(Marginals(logits), shape)
    tokens, parents, scores = rollout(torch.arange(3.0)[:, None], SAMPLING)
    assert (tokens.dtype, parents.dtype, scores.dtype) == (torch.int64, torch.int32, torch.float32)
    assert tokens.shape == parents.shape == scores.shape == (3, shape.num_nodes)
    for i in range(3):
        nodes = grow_product(children_of(logits, SAMPLING, i), shape)
        assert_equal_trees(nodes, tokens[i], parents[i], scores[i])


def test_a_row_without_a_token_drafts_nothing() -> None:
    """A broken state of one request is no business of the others."""
    logits = torch.randn(3, 4, V)
    logits[1, 1] = float("nan")
    shape = SHAPES["default"]
    tokens, parents, scores = HeadsRollout(Marginals(logits), shape)(
        torch.arange(3.0)[:, None], SAMPLING
    )
    depth = torch.tensor([len(path) for path in shape.choices or ()])
    assert scores[1].isfinite().tolist() == (depth == 1).tolist()
    for i in (0, 2):
        nodes = grow_product(children_of(logits, SAMPLING, i), shape)
        assert_equal_trees(nodes, tokens[i], parents[i], scores[i])
