"""From the marginals of every depth to a token tree, for drafts that guess all depths at once.

What follows a node does not depend on the node: its children are the best candidates of the next
depth, the same for all nodes of a depth. So a rollout needs the few best candidates of each depth,
and a rule for which paths of their product form the tree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.tree import Choices, TreeShape
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.tree_levels import best_scores, cut_pool


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
    # Rounding lets a certain child's exceed 0 by 1e-16; it would then outrank its parent.
    return tokens.view(batch, depths, count), gains.clamp(max=0).view(batch, depths, count)


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

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self.is_static = shape.choices is not None
        self.num_nodes = shape.num_nodes
        pairs = _best_pairs(shape) if shape.choices is None else _chosen_pairs(shape.choices)
        self.count = 1 + max(rank for depth in pairs for _, rank in depth)  # tokens of a depth
        for depth, candidates in enumerate(pairs):
            lanes, ranks = torch.tensor(candidates).unbind(1)
            self.register_buffer(f"lanes_{depth}", lanes.clone())
            self.register_buffer(f"ranks_{depth}", ranks.clone())

    def forward(
        self, marginals: Tensor, token_map: Tensor | None, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments as for `depth_candidates`, with a marginal for each step of the shape.

        Returns ``tokens [B, N-1] i64``, ``parents [B, N-1] i32`` (-1 = child of the root, always
        smaller than the node's own index) and ``scores [B, N-1] f32``; a score of -inf marks a node
        that the filters exclude.
        """
        ids, gains = depth_candidates(marginals, sampling, token_map, self.count)
        tokens, parents, scores = [], [], []
        above = gains.new_zeros(gains.shape[0], 1)  # the root's score
        first = -1  # of the depth above, its place among all nodes
        for depth in range(gains.shape[1]):
            lanes, ranks = getattr(self, f"lanes_{depth}"), getattr(self, f"ranks_{depth}")
            found = above[:, lanes] + gains[:, depth, ranks]
            of_depth, lane = ids[:, depth, ranks], lanes.expand_as(found)
            if not self.is_static:
                best = best_scores(found, self.num_nodes)
                found, of_depth = found.gather(1, best), of_depth.gather(1, best)
                lane = lane.gather(1, best)
            tokens.append(of_depth)
            parents.append(first + lane)
            scores.append(found)
            first = 0 if depth == 0 else first + above.shape[1]
            above = found
        if self.is_static:
            all_parents = torch.cat(parents, 1).to(torch.int32)
            return torch.cat(tokens, 1), all_parents, torch.cat(scores, 1)
        kept = best_scores(torch.cat(scores, 1), self.num_nodes).sort(dim=1).values
        return cut_pool(kept, tokens, parents, scores)


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
