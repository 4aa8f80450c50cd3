"""Drafts that are split as their target, ranks being threads here: what the graphs of an engine
folder draft is what those of a whole one do, and the same at all ranks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trtspec import build
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import draft_shape
from trtspec.engine.open import open_sessions
from trtspec.errors import ConfigError
from trtspec.models.rows import PackedRows
from trtspec.ops.collectives import RankGroup

from ..e2e.every_method import METHODS, VARIANTS
from ..e2e.helpers import TinyModels

BUILD: dict[str, Any] = {"backend": "eager", "dtype": "float32", "skip_tokenizer_init": True}
ROWS_OF_REQUESTS = (2, 2, 3)
"""Those of the example inputs of graphs."""


def example(args: tuple[Any, ...], vocab_size: int) -> list[Tensor]:
    """A graph's example inputs as those of texts that begin, each in a block of its own, with the
    same random tokens and states each time."""
    noise = torch.Generator().manual_seed(3)
    _, rows, *others = args
    assert isinstance(rows, PackedRows)
    block = 16
    positions = torch.cat([torch.arange(count) for count in ROWS_OF_REQUESTS])
    request = torch.repeat_interleave(torch.arange(3), torch.tensor(ROWS_OF_REQUESTS))
    tables = torch.zeros_like(rows.block_tables)
    tables[:, 0] = torch.arange(3)
    placed = rows._replace(
        positions=positions, slot_mapping=request * block + positions, block_tables=tables
    )
    ids = torch.randint(vocab_size, (len(positions),), generator=noise)
    leaves = pytree.tree_leaves((ids, placed, *others))
    return [
        torch.randn(leaf.shape, generator=noise) if is_states(leaf) else leaf for leaf in leaves
    ]


def is_states(leaf: Tensor) -> bool:
    return leaf.dim() == 2 and leaf.is_floating_point()


def run(folder: Path, group: RankGroup | None) -> dict[str, list[Tensor]]:
    """What each graph of a folder's draft says, less its caches."""
    engine = EngineConfig.read(folder)
    (opened,) = open_sessions(folder, engine, engine.drafts, group=group).drafts
    said = {}
    for graph in draft_shape(engine, opened.plan).graphs:
        inputs = example(graph.signature.args, engine.target.vocab_size)
        session: Any = opened.sessions[graph.name]
        with torch.no_grad():
            said[graph.name] = list(session._module(*graph.signature.unflatten(inputs)))
    return said


def run_ranks(folder: Path) -> list[dict[str, list[Tensor]]]:
    memory = os.memfd_create("ranks")
    os.ftruncate(memory, RankGroup.memory_bytes(2))
    groups = [RankGroup(memory, rank, 2, patience=60) for rank in range(2)]
    os.close(memory)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda group: run(folder, group), groups))


@pytest.mark.parametrize(
    "method",
    ["chain", "eagle3", "eagle token map", "modules", "pard2", "p_eagle", "dflash2", "dspark"],
)
def test_all_ranks_draft_what_one_does(models: TinyModels, tmp_path: Path, method: str) -> None:
    """Passes and rollouts in one call; heads cut to some tokens, of their own and the target's;
    several modules, convolutions, embeddings that are borrowed."""
    checkpoint, speculation = (METHODS | VARIANTS)[method](models, tmp_path)
    assert speculation is not None
    whole = run(build(checkpoint, speculation, **BUILD), None)
    asked = {**speculation, "draft_tensor_parallel_size": 2}
    first, other = run_ranks(build(checkpoint, asked, tensor_parallel_size=2, **BUILD))
    for name, expected in whole.items():
        assert all(map(torch.equal, first[name], other[name]))
        for found, wanted in zip(first[name], expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_other_numbers_of_ranks_are_refused(models: TinyModels) -> None:
    speculation = {"method": "draft_model", "model": str(models.draft("llama"))}
    asked = {**speculation, "num_speculative_tokens": 2, "draft_tensor_parallel_size": 2}
    words = "draft_tensor_parallel_size is 2, tensor_parallel_size 4: .* write 4 or 1"
    with pytest.raises(ConfigError, match=words):
        build(models.folder("llama"), asked, tensor_parallel_size=4, **BUILD)


def test_heads_without_layers_are_refused_by_name(models: TinyModels, tmp_path: Path) -> None:
    checkpoint, speculation = METHODS["medusa"](models, tmp_path)
    asked = {**(speculation or {}), "draft_tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match="Medusa heads are not split over ranks"):
        build(checkpoint, asked, tensor_parallel_size=2, **BUILD)
