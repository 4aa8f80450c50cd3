"""A mixer of another package that keeps a state: a decayed sum of its values, of each request.

A row reads the sum up to itself, along its own path through a draft. What a rejected row leaves,
what an accepted one does not, and whose sum a row reads shows in the text at once. A mixer is all
that is here: a spec, a module with its replay, a line for the registry.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from checkpoint_converters.families import registry
from checkpoint_converters.families.llama import LLAMA
from checkpoint_converters.hf_config import HfConfig
from trtspec import LLM, SamplingParams
from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.checkpoints import load_target
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.layer import Layers
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.strict import strict_config
from trtspec.engine.graphs import engine_graphs
from trtspec.errors import ConfigError, EngineError
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.step_states import StateMoves
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.llmapi import resources
from trtspec.models.block import Block
from trtspec.models.block_map import BLOCKS
from trtspec.models.causal_lm import CausalLM
from trtspec.models.mixers.attention import Attention
from trtspec.models.rows import Cache
from trtspec.models.state_rows import StateRows
from trtspec.ops.kv_cache import StateSizes
from trtspec.ops.state_walk import StateWalk

from .. import inside
from ..models.tiny_hf import VOCAB
from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, tree, watch
from .prefix_hits import check_hits_at_every_offset

ARCHITECTURE = "DecayedSumForCausalLM"
DECAY = 0.9
PROMPTS = [random_prompt(1, 30), random_prompt(2, 6) * 4, random_prompt(3, 33)]
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
ALL_PARAMS = {"greedy": PARAMS, "sampled": replace(PARAMS, temperature=0.8, seed=5)}


def tight(apart: int) -> dict[str, Any]:
    """Sizes of caches that are too small for a batch, with snapshots that many blocks apart."""
    kv = {"max_tokens": 84, "snapshot_blocks": apart}
    return {"max_num_tokens": 16, "tokens_per_block": 4, "kv_cache_config": kv}


@strict_config()
@dataclass(frozen=True)
class DecayedSumSpec(AttentionSpec):
    """With the weights of attention, of which q and k mean nothing."""

    words: ClassVar[str] = "decayed sums"

    kind: Literal["decayed_sum"] = "decayed_sum"  # type: ignore[assignment]

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        row = self.num_kv_heads, self.head_dim, "float32"
        return CacheBuffer("sum", *row, "slot"), CacheBuffer("value", *row, "step")


class DecayedSum(Attention):
    def forward(
        self, x: Tensor, rows: StateRows, rotation: Any, cache: Cache, **others: Any
    ) -> Tensor:
        packed, kept, residual = rows.packed, others.get("kept"), others["residual"]
        owners, parents = rows.walk().requests(), rows.walk().parents()
        heads = self.get_submodule(self.parts)(x, norm=others["norm"])
        values = heads.unflatten(1, (-1, self.head_dim))[:, -self.num_kv_heads :].float()
        at = rows.state_slots, packed.query_start, packed.context_lens, packed.is_tree
        seen = walk(values, *cache, *at, owners, parents)
        out = seen.repeat_interleave(self.num_heads // self.num_kv_heads, 1).flatten(1)
        if kept is not None:
            out, residual = out[kept], None if residual is None else residual[kept]
        made: Tensor = self.o(out.to(x.dtype), residual=residual)
        return made

    def replay(self, state_slots: Tensor, rows: Tensor, row_start: Tensor, cache: Cache) -> None:
        take_in(state_slots, rows, row_start, *cache)


@torch.library.custom_op("toys::walk", mutates_args=("sums", "values"))
def walk(
    fed: Tensor,
    sums: Tensor,
    values: Tensor,
    slots: Tensor,
    starts: Tensor,
    contexts: Tensor,
    is_tree: Tensor,
    owners: Tensor,
    parents: Tensor,
) -> Tensor:
    values[: len(fed)] = fed[: len(values)]  # a draft keeps none
    before = torch.where(contexts[:, None, None] > 0, sums[slots], 0)
    seen = torch.empty_like(fed)
    for row, (owner, parent) in enumerate(zip(owners.tolist(), parents.tolist(), strict=True)):
        seen[row] = DECAY * (before[owner] if parent < 0 else seen[parent]) + fed[row]
    for i, (first, end) in enumerate(pairwise(starts.tolist())):
        if end > first:
            sums[slots[i]] = seen[first if is_tree[i] else end - 1]
    return seen


@walk.register_fake
def _(fed: Tensor, *others: Tensor) -> Tensor:
    return torch.empty_like(fed)


@torch.library.custom_op("toys::take_in", mutates_args=("sums",))
def take_in(slots: Tensor, rows: Tensor, row_start: Tensor, sums: Tensor, values: Tensor) -> None:
    for slot, (first, end) in zip(slots.tolist(), pairwise(row_start.tolist()), strict=True):
        for row in rows[first:end]:
            sums[slot] = DECAY * sums[slot] + values[row]


def lacks(spec: DecayedSumSpec, kernels: Any) -> Iterator[str]:
    if kernels.value != "cpu":
        yield spec.words


@dataclass(frozen=True)
class Entry:
    """A Llama whose first layers have sums in place of attention, all but ``attend``."""

    architecture: str
    attend: int
    value: ClassVar[str] = "toys:DECAYED_SUM"
    dist: ClassVar[None] = None

    def fields(self, hf: HfConfig) -> dict[str, Any]:
        fields = LLAMA.read_fields(hf)
        layers = list(fields["layers"])
        own = {name: vars(layers[0].mixer)[name] for name in SIZES}
        sums = DecayedSumSpec(**own, rope=None)
        count = len(layers) - self.attend
        mixed = [*(replace(layer, mixer=sums) for layer in layers[:count]), *layers[count:]]
        return {**fields, "layers": Layers.of(mixed)}

    def load(self) -> Any:
        return replace(
            LLAMA,
            architecture=self.architecture,
            model_type=self.architecture.lower(),
            read_fields=self.fields,
            draft_defaults=None,
            gguf=None,
        )


SIZES = ("num_heads", "num_kv_heads", "head_dim")
TOY, ALL_SUMS = Entry(ARCHITECTURE, 1), Entry("DecayedSumsForCausalLM", 0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModels]:
    patch = pytest.MonkeyPatch()
    patch.setattr(registry, "entry_points", lambda group: [TOY, ALL_SUMS])
    registry.families.cache_clear()
    patch.setitem(BLOCKS, DecayedSumSpec, Block(DecayedSumSpec, DecayedSum, lacks=lacks))
    yield TinyModels(tmp_path_factory.mktemp("toys"))
    patch.undo()
    registry.families.cache_clear()


def toy_folder(models: TinyModels, entry: Entry) -> Path:
    """A copy of a Llama's folder that says it is a toy."""
    folder = models.folder("llama")
    made = folder.with_name(entry.architecture)
    shutil.copytree(folder, made)
    config = json.loads((made / "config.json").read_text())
    architecture = entry.architecture
    config |= {"architectures": [architecture], "model_type": architecture.lower()}
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.fixture(scope="module")
def toy(models: TinyModels) -> Path:
    return toy_folder(models, TOY)


def text(llm: LLM, params: SamplingParams = PARAMS) -> list[list[int]]:
    return tokens(llm.generate(PROMPTS, params, use_tqdm=False))


@pytest.fixture(scope="module")
def expected(toy: Path) -> dict[str, list[list[int]]]:
    """Each prompt by itself, in one call, without drafts."""
    with open_llm(toy, max_seq_len=96, max_batch_size=1) as llm:
        return {name: text(llm, params) for name, params in ALL_PARAMS.items()}


def speculations(models: TinyModels) -> dict[str, Any]:
    draft = models.draft("llama")
    return {"alone": None, "chains": ngram(4), "trees": tree(draft, 3, 3, 12)}


@pytest.mark.parametrize("way", ["alone", "chains", "trees"])
@pytest.mark.parametrize("apart", [1, 3])
def test_texts_are_the_same(
    models: TinyModels, toy: Path, expected: dict[str, list[list[int]]], way: str, apart: int
) -> None:
    """In a batch, with chunks, drafts and preemption, and on prefixes with snapshots."""
    speculation = speculations(models)[way]
    with open_llm(toy, speculation, max_seq_len=96, **tight(apart)) as llm:
        steps = watch(llm)
        for name in ("greedy", "sampled", "greedy"):
            assert text(llm, ALL_PARAMS[name]) == expected[name]
        assert any(step.num_preempted for step in steps)
        metrics = llm.get_metrics()
        assert metrics["num_prefix_cache_hits"] > 0
        assert way == "alone" or metrics["num_accepted_tokens"] > 20
        assert_no_leak(llm)


@pytest.mark.parametrize("way", ["alone", "chains", "trees"])
@pytest.mark.parametrize("apart", [1, 2])
def test_hits_at_every_offset(models: TinyModels, toy: Path, way: str, apart: int) -> None:
    check_hits_at_every_offset(toy, speculations(models)[way], apart, VOCAB)


def test_a_text_is_that_of_one_call(toy: Path, expected: dict[str, list[list[int]]]) -> None:
    checkpoint = load_target(toy)
    model = CausalLM(checkpoint.config, torch.float32)
    model.load_weights(checkpoint)
    for prompt, output in zip(PROMPTS, expected["greedy"], strict=True):
        best = log_probabilities(model, torch.tensor(prompt + output)).argmax(1)
        assert best[len(prompt) - 1 : -1].tolist() == output


def accepts_all(self: ResourceManager, plan: StepPlan, result: StepResult) -> StateMoves:
    """Every node, right or wrong."""
    counts = result.drafts.counts
    rows = [list(range(1 + count)) for count in counts]
    start = [0, *accumulate(map(len, rows))]
    return right_moves(self, plan, replace(result, start=start, rows=[*chain(*rows)]))


def accepts_none(self: ModelEngine, taken: Any) -> None:
    """Accepted rows leave nothing."""


def row_before(rows: StateWalk) -> Tensor:
    """Of siblings that of the other one."""
    right = right_parents(rows)
    return torch.where(right < 0, -1, torch.arange(len(right)) - 1)


right_moves, right_parents = ResourceManager.state_moves, StateWalk.parents
CONTROLS: dict[str, tuple[Any, str, Any]] = {
    "all nodes": (ResourceManager, "state_moves", accepts_all),
    "no node": (ModelEngine, "_replay", accepts_none),
    "row before": (StateWalk, "parents", row_before),
}


@pytest.mark.parametrize("way", ["chains", "trees"])
@pytest.mark.parametrize("wrong", CONTROLS)
def test_a_wrong_state_is_found(
    models: TinyModels,
    toy: Path,
    expected: dict[str, list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    wrong: str,
) -> None:
    """The controls; in a chain the row before is the parent."""
    monkeypatch.setattr(*CONTROLS[wrong])
    with open_llm(toy, speculations(models)[way], max_seq_len=96) as llm:
        is_right = text(llm) == expected["greedy"]
    assert is_right == (way == "chains" and wrong == "row before")


def test_a_snapshot_that_is_a_token_off_is_found(
    toy: Path, expected: dict[str, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks the last of the four tokens of a chunk."""
    copy = KVTensors.copy_states

    def without_last(caches: KVTensors, source: Tensor, wanted: Tensor) -> None:
        copy(caches, source, wanted)
        sums, kinds = caches.caches, caches.kinds
        for (state, values), (kind, _) in zip(sums, kinds, strict=True):
            if kind == "slot" and source.tolist() == [0]:  # to a snapshot
                state[wanted] = (state[source] - values[3]) / DECAY

    monkeypatch.setattr(KVTensors, "copy_states", without_last)
    with open_llm(toy, max_seq_len=96, max_batch_size=1, **tight(1)) as llm:
        first, again = (llm.generate(PROMPTS[0], PARAMS, use_tqdm=False) for _ in range(2))
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 28)
    assert tokens([first]) == expected["greedy"][:1] != tokens([again])


@pytest.mark.parametrize(("topk", "rows", "least"), [(1, 4, 3.5), (2, 7, 2.5)])
def test_it_drafts_for_itself(
    toy: Path, expected: dict[str, list[list[int]]], topk: int, rows: int, least: float
) -> None:
    """A draft's states are stepped by the passes of a rollout: a chain is right up to the ends, and
    a tree as far as its few rows hold the likeliest path."""
    with open_llm(toy, tree(toy, topk, 3, rows), max_seq_len=96) as llm:
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected["greedy"]
        assert least < llm.get_metrics()["acceptance_length"] <= 4


def test_what_keeps_no_states_refuses_them(toy: Path) -> None:
    with pytest.raises(ConfigError, match=r"has layers that keep states, and graphs of .*'onnx'"):
        open_llm(toy, backend="onnx")
    with pytest.raises(EngineError, match=r"states of max_batch_size 8 requests take \d+ bytes"):
        open_llm(toy, max_batch_size=8, kv_cache_config={"free_memory_fraction": 1e-9})


def test_a_target_without_attention(models: TinyModels) -> None:
    """Its states are all that it keeps: tokens cost nothing, and prefixes are found as well."""
    folder = toy_folder(models, ALL_SUMS)
    with open_llm(folder, max_seq_len=96, kv_cache_config={"enable_block_reuse": False}) as llm:
        expected = text(llm)
    with open_llm(folder, ngram(4), max_seq_len=96, **tight(1)) as llm:
        assert [text(llm), text(llm)] == [expected, expected]
        metrics = llm.get_metrics()
        assert metrics["num_prefix_cache_hits"] > 0 < metrics["num_accepted_tokens"]
        assert_no_leak(llm)


def test_memory_counts_states_and_snapshots(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token has 256 bytes of K/V, a state and a row of a call 128."""
    limits = {"max_batch_size": 3, "max_seq_len": 100, "tokens_per_block": 8, "max_num_tokens": 16}
    states, stretch = (3 + 1 + 16) * 128, 16 * 256 + 128

    def sizes(budget: int, **kv: Any) -> tuple[int, StateSizes, int]:
        monkeypatch.setattr(resources, "free_memory", lambda device: 2 * budget)
        config = {"snapshot_blocks": 2, **kv}
        with open_llm(toy, kv_cache_config=config, **limits) as llm:
            books = inside.resources(llm).target
            return books.num_blocks, books.states, len(inside.target(llm).caches.all[0])

    assert sizes(states + 3 * stretch) == (6, StateSizes(3, 3, 2), 7)
    assert sizes(states + 3 * stretch - 1) == (5, StateSizes(3, 2, 2), 6)
    plain = sizes(states + 48 * 256, enable_block_reuse=False)
    assert plain == (6, StateSizes(3, 0, 2), 4)
    refusal = rf"states of max_batch_size 3 requests take {states} bytes, .* take {states - 1};"
    with pytest.raises(EngineError, match=refusal):
        sizes(states - 1)


def test_graphs_are_exported(toy: Path) -> None:
    """With every size dynamic, the states among them, and the toy's ops in them."""
    plan = plan_build(toy, BuildConfig(backend="aoti", dtype="float32", max_seq_len=96))
    for graph in engine_graphs(plan.engine).values():
        sign = graph.signature
        exported = torch.export.export(graph.make(), sign.args, dynamic_shapes=sign.dims)
        assert "toys" in str(exported.graph)
