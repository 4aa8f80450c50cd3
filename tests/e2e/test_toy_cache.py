"""A mixer of another package whose cache has a third buffer: a checksum of each token's K and V.

It writes the sum of a row's keys and values behind them, and compares all sums with the rows that
its requests see, in every call. So whatever copies, moves, shares or returns rows must take all of
a layer's buffers along. A mixer is all that is here: a spec, a module, a line for the registry.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from checkpoint_converters.families import registry
from checkpoint_converters.families.llama import LLAMA
from checkpoint_converters.hf_config import HfConfig
from trtspec import SamplingParams
from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.layer import Layers
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.strict import strict_config
from trtspec.executor.engines import kv_tensors
from trtspec.models.block import Block
from trtspec.models.block_map import BLOCKS
from trtspec.models.mixers.attention import Attention
from trtspec.models.rows import Cache, PackedRows, flat_slots

from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, tree, watch

ARCHITECTURE = "ChecksumForCausalLM"
PROMPTS = [random_prompt(1, 30), random_prompt(2, 6) * 4, random_prompt(3, 33)]
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
TIGHT: dict[str, Any] = {
    "max_num_tokens": 16,
    "tokens_per_block": 4,
    "kv_cache_config": {"max_tokens": 84},
}


@strict_config()
@dataclass(frozen=True)
class ChecksumSpec(AttentionSpec):
    words: ClassVar[str] = "attention with checksums"

    kind: Literal["checksum_attention"] = "checksum_attention"  # type: ignore[assignment]

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        return (*super().buffers, CacheBuffer("checksum", 1, 1, "float32"))


class ChecksumAttention(Attention):
    compared: ClassVar[int] = 0

    def forward(
        self, x: Tensor, rows: PackedRows, rotation: Any, cache: Cache, **others: Any
    ) -> Tensor:
        *kept, checksum = cache
        out = super().forward(x, rows, rotation, tuple(kept), **others)
        sums, sums_of_rows = checksum.view(-1), kept[0].sum((2, 3)) + 3 * kept[1].sum((2, 3))
        placed = rows.slot_mapping[rows.slot_mapping >= 0]
        sums[placed] = sums_of_rows.view(-1)[placed]
        for table, count in zip(rows.block_tables, rows.context_lens.tolist(), strict=True):
            slots = flat_slots(table[None], torch.arange(count)[None], kept[0].shape[1])[0]
            assert torch.equal(sums[slots], sums_of_rows.view(-1)[slots]), "a row lost its checksum"
            ChecksumAttention.compared += count
        return out


def toy_fields(hf: HfConfig) -> dict[str, Any]:
    fields = LLAMA.read_fields(hf)
    own = {name: vars(fields["layers"][0].mixer)[name] for name in ("num_heads", "num_kv_heads")}
    mixer = ChecksumSpec(**own, head_dim=fields["layers"][0].mixer.head_dim)
    layers = Layers.of(replace(layer, mixer=mixer) for layer in fields["layers"])
    return {**fields, "layers": layers}


class Entry:
    value, dist = "toys:CHECKSUM", None

    def load(self) -> Any:
        return replace(
            LLAMA,
            architecture=ARCHITECTURE,
            model_type="checksum",
            read_fields=toy_fields,
            draft_defaults=None,
            gguf=None,
        )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModels]:
    patch = pytest.MonkeyPatch()
    patch.setattr(registry, "entry_points", lambda group: [Entry()])
    registry.families.cache_clear()
    patch.setitem(BLOCKS, ChecksumSpec, Block(ChecksumSpec, ChecksumAttention))
    yield TinyModels(tmp_path_factory.mktemp("toys"))
    patch.undo()
    registry.families.cache_clear()


def as_toy(folder: Path) -> Path:
    """A copy of a Llama's folder that says it is a toy."""
    toy = folder.with_name(f"{folder.name}-toy")
    if not toy.is_dir():
        shutil.copytree(folder, toy)
        config = json.loads((toy / "config.json").read_text())
        config |= {"architectures": [ARCHITECTURE], "model_type": "checksum"}
        (toy / "config.json").write_text(json.dumps(config))
    return toy


def speculations(models: TinyModels) -> dict[str, Any]:
    draft = as_toy(models.draft("llama"))
    return {"alone": None, "chains": ngram(4), "trees": tree(draft, 2, 3, 7)}


@pytest.mark.parametrize("way", ["alone", "chains", "trees"])
def test_every_row_keeps_its_checksum(models: TinyModels, way: str) -> None:
    """Alone, with preemption and chunks, behind kept prefixes, through the moves of trees."""
    llama = models.folder("llama")
    with open_llm(llama, max_seq_len=96) as llm:
        expected = tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False))
    before, speculation = ChecksumAttention.compared, speculations(models)[way]
    with open_llm(as_toy(llama), speculation, max_seq_len=96, **TIGHT) as llm:
        steps = watch(llm)
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected
        assert any(step.num_preempted for step in steps)
        assert tokens(llm.generate(PROMPTS[2:], PARAMS, use_tqdm=False)) == expected[2:]
        assert llm.get_metrics()["num_prefix_cache_hits"] > 0
        assert_no_leak(llm)
    assert ChecksumAttention.compared > before + 1000


def test_moves_without_it_are_found(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: accepted rows of trees whose third buffer stays behind."""
    real = kv_tensors.kv_compact

    def partly(buffers: list[Tensor], source: Tensor, wanted: Tensor) -> None:
        real([buffer for buffer in buffers if buffer.shape[-1] > 1], source, wanted)

    monkeypatch.setattr(kv_tensors, "kv_compact", partly)
    folder = as_toy(models.folder("llama"))
    with (
        open_llm(folder, speculations(models)["trees"], max_seq_len=96) as llm,
        pytest.raises(Exception, match="a row lost its checksum"),
    ):
        tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False))


def test_it_costs_its_bytes(models: TinyModels) -> None:
    with open_llm(as_toy(models.folder("llama")), max_seq_len=96) as llm:
        mixers = [layer.mixer for layer in llm.config.target.layers]
        wanted = sum(4 * (2 * m.num_kv_heads * m.head_dim + 1) for m in mixers)  # type: ignore[attr-defined]
        assert llm._runtime.target.caches.bytes_per_token == wanted
