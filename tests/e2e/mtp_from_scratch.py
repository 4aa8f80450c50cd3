"""What MTP modules compute of a whole text at once, to compare their caches with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trtspec import LLM
from trtspec.backends.packing import RowGroup, pack
from trtspec.models.causal_lm import CausalLM, new_caches
from trtspec.models.rows import PackedRows
from trtspec.speculative.mtp.network import MtpModules

from .. import inside


class FromScratch:
    """One pass of target and modules over a whole text, in caches of their own."""

    def __init__(self, llm: LLM) -> None:
        network: Any = llm.config.drafts[0].network
        target, modules = (
            inside.session(inside.target(llm))._module,
            inside.session(inside.drafts(llm)[0])._module,
        )
        assert isinstance(target, CausalLM) and isinstance(modules, MtpModules)
        self.target, self.modules, self.layout = target, modules, llm.config.layout
        self.decoder, self.ahead = network.decoder, network.num_modules

    @torch.no_grad()
    def rows(self, text: list[int]) -> tuple[Tensor, Tensor]:
        """K and V ``[layers, rows, ...]`` of the rows whose tokens are all in the text."""
        blocks = -(-len(text) // self.layout.tokens_per_block)
        table = torch.arange(blocks, dtype=torch.int32)
        size, caches = self.layout.tokens_per_block, []
        for config in (self.target.config, self.decoder):
            caches.append(new_caches(config, blocks, size, torch.float32))
        (ids, *rest), *_ = pack([RowGroup(text[:-1], 0, table)], self.layout)
        _, states = self.target.trunk(ids, PackedRows(*rest), caches[0])
        assert states is not None
        self.modules(torch.tensor(text[1:]), PackedRows(*rest), states, caches[1])
        final = max(len(text) - self.ahead, 0)
        parts = zip(*caches[1], strict=True)
        k, v = (torch.stack([x.flatten(0, 1)[:final] for x in part]) for part in parts)
        return k, v


def kept_rows(llm: LLM) -> Iterator[tuple[list[int], int, Tensor, Tensor]]:
    """Of every running request: its tokens, its kept rows, and their K and V, layer by layer."""
    executor, (engine,) = inside.executor(llm), inside.drafts(llm)
    (manager,) = executor._resources.drafts
    for id, count in manager.committed_lengths().items():
        slots = manager.slots(id, list(range(count)))
        k, v = (
            torch.stack([x.flatten(0, 1)[slots] for x in engine.caches.all])
            .unflatten(0, (-1, 2))
            .unbind(1)
        )
        yield executor._scheduler._requests[id].tokens, count, k, v
