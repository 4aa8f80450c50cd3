"""Rollouts of networks whose guesses depend on the path, beside trees that plain Python grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from trtspec.config.tree import TreeShape
from trtspec.engine.graphs import own_state, with_borrowed
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.block.backbone import BlockDraft
from trtspec.speculative.block.rollout import PathRollout
from trtspec.speculative.block.shape import BlockConfig

from ...models.paged import BLOCK as PAGE
from ...models.paged import Feed, PagedModel
from ..eagle.eagle_reference import random_target
from ..tree_reference import Children, Node, Path, columns, grow
from .dflash_reference import TARGET, DenseDFlash, random_checkpoint
from .test_network import packed_target

GREEDY = (0.0, 0, 1.0, 0.0, 0, 0, 0)
SAMPLED = (0.8, 0, 1.0, 0.0, 2, 1, 7)
FILTERED = (1.0, 3, 0.9, 0.1, -5, 0, 40)
SAMPLING = (GREEDY, SAMPLED, FILTERED)
SHAPES = {
    "chain": TreeShape(1, 5, 6),
    "dynamic": TreeShape(3, 4, 16),
    "static": TreeShape.static([[0], [1], [2], [0, 0], [0, 2], [1, 0], [0, 2, 1]]),
}
STATES, ROOT = 9, 33

Logits = Callable[[Path], tuple[Tensor, float | None]]
"""Of a path behind the root: the logits of what follows it ``[V_d] f32``, and how sure the network
is of the best of that, as a probability."""


def loaded(
    network: type[BlockDraft], config: BlockConfig, more: Mapping[str, Tensor]
) -> tuple[BlockDraft, DenseDFlash]:
    """A network of random weights, and the backbone's reference; ``more``: the variant's own."""
    checkpoint, tensors = random_checkpoint(config), random_target(TARGET)
    checkpoint.tensors |= more
    draft = network(config, TARGET, torch.float32)
    for name, buffer in draft.named_buffers():
        if name != "rotary.inv_freq":
            buffer.fill_(-1 if name == "token_map" else float("nan"))
    draft.load_weights(checkpoint, {})
    for name, tensor in own_state(draft).items():
        assert not tensor.isnan().any(), f"{name} was not filled"
    weights = with_borrowed(draft, own_state(draft), packed_target(TARGET, tensors))
    draft.load_state_dict(weights, assign=True)
    return draft, DenseDFlash(config, checkpoint.tensors, tensors)


@torch.no_grad()
def rolled_out(
    draft: BlockDraft, shape: TreeShape, states: Tensor, request: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The tree of one request, of two in a call."""
    decoder = type("Decoder", (), {"config": draft.config.decoder, "dtype": draft.dtype})()
    paged = PagedModel(decoder)
    feeds = {r: Feed([*[7] * (STATES - 1), ROOT], 0) for r in (0, 1)}
    ids, rows, _ = paged.arguments(feeds)
    rollout = PathRollout(draft, draft.config, shape, PAGE)
    other = SAMPLING[(request + 1) % len(SAMPLING)]
    found = rollout(
        ids,
        rows,
        rows.query_start[1:].long() - 1,
        columns(SAMPLING[request], other),
        torch.cat((states, states.flip(0))),
        paged.caches,
    )
    return found[0][0], found[1][0], found[2][0]


def expected(logits: Logits, shape: TreeShape, request: int, ids: Tensor | None) -> list[Node]:
    """The tree that is grown node by node; ``ids``: the target's of each column."""
    sampling = columns(SAMPLING[request])

    def children(path: Path, count: int) -> list[tuple[int, np.float32]]:
        found, sure = logits(path)
        row = sampling._replace(output_index=sampling.output_index + len(path))
        tokens, gains = draft_candidates(found[None], *SamplingColumns(*row), ids, count)
        probabilities = gains[0].clamp(max=0).double().exp()
        if sure is not None:
            left = (1 - float(probabilities[0])) or 1.0
            others = (probabilities[1:] / left).clamp(max=1) * (1 - sure)
            first = probabilities[:1].sign() * sure
            probabilities = torch.cat((first, others))
        scores = probabilities.log().float().numpy()
        return list(zip(tokens[0].tolist(), scores, strict=True))

    tree: Children = children
    return grow(tree, shape)


def assert_same_tree(
    nodes: list[Node], found: tuple[Tensor, Tensor, Tensor], within: float = 2e-4
) -> None:
    """Up to rounding: the backbone is computed in another order."""
    tokens, parents, scores = found
    assert parents.tolist() == [node.parent for node in nodes]
    finite = scores.isfinite().tolist()
    assert finite == [bool(np.isfinite(node.score)) for node in nodes]
    kept = [node for node, known in zip(nodes, finite, strict=True) if known]
    assert tokens[scores.isfinite()].tolist() == [node.token for node in kept]
    own = torch.tensor([float(node.score) for node in kept])
    torch.testing.assert_close(scores[scores.isfinite()], own, rtol=1e-4, atol=within)
