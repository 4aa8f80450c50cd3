"""The whole rollout of a draft model as one module: every depth, beam, rerank, one engine call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.models.causal_lm import CausalLM
from trtspec.ops.sampling import draft_candidates


class TreeRollout(nn.Module):
    """Expand a token tree (k, D, N) with a causal language model; a chain is k = 1.

    Depth 1 holds the ``topk`` best children of the root; each further depth feeds the ``topk`` best
    nodes of the last one (the beam) and records ``topk`` children of each. The ``N - 1`` best of
    all candidates by cumulative score are kept (EAGLE-2's expand and rerank, Li et al. 2024). A
    score is the cumulative log-softmax of the noise-perturbed draft distribution (coupled
    speculative decoding, Daliri et al. 2024), so a child never scores above its parent and the kept
    nodes are closed under parents; ties go to the earlier candidate.
    """

    def __init__(
        self,
        model: CausalLM,
        topk: int,
        num_steps: int,
        num_draft_tokens: int,
        tokens_per_block: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.topk = topk
        self.num_steps = num_steps
        self.num_nodes = num_draft_tokens - 1
        self.tokens_per_block = tokens_per_block

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        block_tables: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        is_tree: Tensor,
        tree_mask: Tensor,
        last_rows: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        min_p: Tensor,
        seed: Tensor,
        sample_index: Tensor,
        output_index: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed the accepted rows, then roll out.

        The first eight arguments are the packed rows of an engine call (tokens that the draft cache
        lacks, each request's root last). ``last_rows [B] i64`` is the row of each request's root;
        the sampling arguments are ``[B]`` as in `trtspec.ops.sampling.draft_candidates`, with
        ``output_index`` that of the first drafted token.

        Returns ``tokens [B, N-1] i64``, ``parents [B, N-1] i32`` (-1 = child of the root, always
        smaller than the node's own index) and ``scores [B, N-1] f32``; a score of -inf marks a
        node that the filters exclude.
        """
        k = self.topk
        batch = last_rows.shape[0]
        caches = (k_caches, v_caches)

        rows = (input_ids, positions, slot_mapping, block_tables, query_start, context_lens)
        hidden = self.model.trunk(*rows, is_tree, tree_mask, *caches)
        logits = self.model.head(hidden[last_rows])
        sampling = (temperature, top_k, top_p, min_p, seed, sample_index)
        tokens, scores = _children(logits, sampling, output_index, k)

        root_position = positions[last_rows]
        # Rollout rows lie behind the accepted rows: node j of the rollout at cache offset j.
        context = root_position + 1
        lanes = torch.arange(k, device=tokens.device)
        starts = torch.arange(batch + 1, device=tokens.device, dtype=torch.int32) * k
        all_tree = torch.ones_like(context, dtype=torch.bool)
        words = tree_mask.shape[1]
        beam = lanes.expand(batch, k)
        beam_tokens, beam_scores = tokens, scores
        ancestors = torch.zeros(batch, k, words, device=tokens.device, dtype=torch.int64)
        per_row = tuple(x.repeat_interleave(k) for x in sampling)

        pool_tokens, pool_scores = [tokens], [scores]
        pool_parents = [torch.full_like(beam, -1)]
        pooled = k
        for depth in range(1, self.num_steps):
            offset = (depth - 1) * k + lanes
            ancestors = ancestors | _bits(offset, words)
            hidden = self.model.trunk(
                beam_tokens.reshape(-1),
                (root_position + depth).repeat_interleave(k),
                self._slots(block_tables, context[:, None] + offset).reshape(-1),
                block_tables,
                starts,
                context.to(torch.int32),
                all_tree,
                ancestors.reshape(-1, words),
                *caches,
            )
            index = (output_index + depth).repeat_interleave(k)
            logits = self.model.head(hidden)
            children, gains = _children(logits, per_row, index, k)
            tokens = children.reshape(batch, k * k)
            scores = (beam_scores[:, :, None] + gains.reshape(batch, k, k)).reshape(batch, k * k)
            pool_tokens.append(tokens)
            pool_scores.append(scores)
            pool_parents.append(beam.repeat_interleave(k, dim=1))

            best = _best(scores, k)
            beam_tokens, beam_scores = tokens.gather(1, best), scores.gather(1, best)
            beam = best + pooled
            parent_lane = (best // k)[:, :, None].expand(batch, k, words)
            ancestors = ancestors.gather(1, parent_lane)
            pooled += k * k

        return self._rerank(
            torch.cat(pool_tokens, 1), torch.cat(pool_parents, 1), torch.cat(pool_scores, 1)
        )

    def _rerank(
        self, tokens: Tensor, parents: Tensor, scores: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keep the N - 1 best candidates in their order and point parents at kept indices."""
        kept = _best(scores, self.num_nodes).sort(dim=1).values
        new_index = torch.zeros_like(tokens).scatter(
            1, kept, torch.arange(self.num_nodes, device=kept.device).expand_as(kept)
        )
        old_parents = parents.gather(1, kept)
        new_parents = new_index.gather(1, old_parents.clamp(min=0))
        new_parents = torch.where(old_parents < 0, -1, new_parents).to(torch.int32)
        return tokens.gather(1, kept), new_parents, scores.gather(1, kept)

    def _slots(self, block_tables: Tensor, cache_positions: Tensor) -> Tensor:
        """Flat slots of ``cache_positions [B, k]``; -1 where the request holds no block."""
        column = cache_positions // self.tokens_per_block
        inside = column < block_tables.shape[1]
        block = block_tables.gather(1, column.clamp(max=block_tables.shape[1] - 1)).long()
        slot = block * self.tokens_per_block + cache_positions % self.tokens_per_block
        return torch.where(inside & (block >= 0), slot, -1)


def _children(
    logits: Tensor, sampling: tuple[Tensor, ...], output_index: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    temperature, top_k, top_p, min_p, seed, sample_index = sampling
    return draft_candidates(
        logits, temperature, top_k, top_p, min_p, seed, sample_index, output_index, None, k
    )


def _bits(offset: Tensor, words: int) -> Tensor:
    """Packed masks ``[k, words]`` with bit ``offset[i]`` set in row i."""
    word = torch.arange(words, device=offset.device)
    bit = torch.ones_like(offset) << (offset % 64)
    return torch.where(word == (offset // 64)[:, None], bit[:, None], 0)


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices ``[B, count]`` of the largest scores, descending, ties to the lowest index."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]
