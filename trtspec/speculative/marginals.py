"""From the marginals of every depth to a token tree, for drafts that guess all depths at once.

What follows a node does not depend on the node: its children are the best candidates of the next
depth, the same for all nodes of a depth. So a rollout needs the few best candidates of each depth,
and a rule for which paths of their product form the tree.
"""

from __future__ import annotations

from itertools import accumulate, chain

import torch
from torch import Tensor, nn

from trtspec.config.tree import Choices, TreeShape
from trtspec.ops.build_tree import marginal_trees
from trtspec.ops.sampling import SamplingColumns, draft_candidates


def depth_candidates(
    marginals: Tensor, sampling: SamplingColumns, token_map: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """The best ``count`` tokens of every depth, best first, and the log probability of each under
    the noise of its own output index.

    ``marginals [B, D, V_d] f32`` are logits, depth 1 first; ``sampling`` holds columns ``[B]``,
    with ``output_index`` that of depth 1. Returns ``tokens [B, D, count] i64`` (the target's ids)
    and ``gains [B, D, count] f32``, -inf where the filters leave fewer tokens.
    """
    batch, depths = marginals.shape[:2]
    columns = SamplingColumns(*(column.repeat_interleave(depths) for column in sampling))
    depth = torch.arange(depths, device=marginals.device).repeat(batch)
    columns = columns._replace(output_index=columns.output_index + depth)
    tokens, gains = draft_candidates(marginals.flatten(0, 1), *columns, token_map, count)
    return tokens.view(batch, depths, count), gains.view(batch, depths, count)


class MarginalTree(nn.Module):
    """A token tree from the marginals of its depths.

    A node's score is the sum of the log probabilities along its path, each from the noise-perturbed
    marginal (coupled speculative decoding, Daliri et al. 2024), so no child scores above its
    parent. A chain is a tree of width one.

    Without choices the tree is DDTree's (arXiv 2604.12989): of all paths through each depth's k
    best tokens, the N - 1 with the highest probability. No heap is needed: the N - 1 best of all
    paths are among the N - 1 best of their own depth, and for a node that extends the i-th best of
    the depth above by the j-th best token, i j - 1 others of its depth are no worse, so only pairs
    with i j < N count. With choices it has the nodes that they name, whatever their scores. Among
    equals the earlier candidate wins.
    """

    starts: Tensor
    lanes: Tensor
    ranks: Tensor

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self.is_static = shape.choices is not None
        self.num_nodes = shape.num_nodes
        pairs = _best_pairs(shape) if shape.choices is None else _chosen_pairs(shape.choices)
        self.count = 1 + max(rank for depth in pairs for _, rank in depth)  # tokens of a depth
        starts = list(accumulate(map(len, pairs), initial=0))
        lanes, ranks = zip(*chain.from_iterable(pairs), strict=True)
        for name, column in (("starts", starts), ("lanes", lanes), ("ranks", ranks)):
            self.register_buffer(name, torch.tensor(column, dtype=torch.int32))

    def forward(
        self, marginals: Tensor, token_map: Tensor | None, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments as for `depth_candidates`, with a marginal for each step of the shape.

        Returns ``tokens [B, N-1] i64``, ``parents [B, N-1] i32`` (-1 = child of the root, always
        smaller than the node's own index) and ``scores [B, N-1] f32``; a score of -inf marks a node
        that the filters exclude.
        """
        tokens, gains = depth_candidates(marginals, sampling, token_map, self.count)
        return marginal_trees(
            tokens, gains, self.starts, self.lanes, self.ranks, self.num_nodes, self.is_static
        )


# Of every depth in turn its candidates: (place of the parent in the depth above, rank of the token)
_Pairs = list[list[tuple[int, int]]]


def _best_pairs(shape: TreeShape) -> _Pairs:
    """The candidates of best-first trees; the parents of a depth are sorted, best first."""
    pairs: _Pairs = []
    width = 1
    for _ in range(shape.num_steps):
        ranks = [min(shape.topk, shape.num_nodes // (lane + 1)) for lane in range(width)]
        pairs.append([(lane, rank) for lane in range(width) for rank in range(ranks[lane])])
        width = min(len(pairs[-1]), shape.num_nodes)
    return pairs


def _chosen_pairs(choices: Choices) -> _Pairs:
    """The nodes of a static tree; ``choices`` are sorted by depth, then by path."""
    pairs: _Pairs = []
    places: dict[tuple[int, ...], int] = {(): 0}
    for depth in range(1, max(map(len, choices)) + 1):
        paths = [path for path in choices if len(path) == depth]
        pairs.append([(places[path[:-1]], path[-1]) for path in paths])
        places = {path: place for place, path in enumerate(paths)}
    return pairs
