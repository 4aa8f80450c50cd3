"""PARD and P-EAGLE drafts change no token, and every tree is that of the whole text in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtspec import LLM, SamplingParams, build
from trtspec.backends.packing import RowGroup, pack
from trtspec.config.tree import TreeShape
from trtspec.errors import ConfigError, RequestError
from trtspec.executor.step.request import Request
from trtspec.models.causal_lm import new_caches
from trtspec.models.rows import PackedRows
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.parallel.shape import Pard2Config, PardConfig, PEagleConfig

from .. import inside
from ..speculative.tree_reference import Children, assert_equal_trees, grow_product
from ..speculative.tree_reference import Path as TokenPath
from .helpers import TinyModels, assert_no_leak, open_llm, random_prompt, tokens, watch
from .parallel_drafts import p_eagle, pard, pard2, random_p_eagle, random_pard2, save_pard

PROMPTS = [random_prompt(460 + i, n) for i, n in enumerate((30, 1, 17, 40))]
PROMPTS += [random_prompt(470, 6) * 4]
GREEDY = SamplingParams(max_tokens=20)
SAMPLED = [SamplingParams(max_tokens=20, temperature=0.8, seed=i) for i in range(len(PROMPTS))]
FILTERED = [
    GREEDY,
    SamplingParams(max_tokens=14, temperature=0.8, seed=2),
    SamplingParams(max_tokens=14, temperature=1.0, seed=3, top_k=5, top_p=0.9),
    SamplingParams(max_tokens=14, temperature=0.5, seed=-4, min_p=0.05),
    GREEDY,
]
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 4},
    "one": {"num_speculative_tokens": 1},
    "tree": {"num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 12},
    "static": {"eagle_choices": [[0], [1], [3], [1, 0], [1, 2], [3, 1], [1, 2, 0]]},
}
MASK = {"pard": 7, "p_eagle": 5}
CONFIGS = {"pard": PardConfig, "pard2": Pard2Config, "p_eagle": PEagleConfig}

Drafts = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def drafts(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    """The config of a draft of a method for a case, without its shape."""
    root = tmp_path_factory.mktemp("parallel")

    @cache
    def made(method: str, case: str) -> dict[str, Any]:
        folder = root / f"{method}-{case}"
        if method == "pard2":
            hf = models.hf(case).__class__.from_pretrained(models.draft(case))
            return pard2(random_pard2(hf, models.hf(case), folder))
        if method == "pard":
            models.draft(case)
            hf = models.hf(case).__class__.from_pretrained(models.draft(case))
            return pard(save_pard(hf, folder, MASK[method]))
        ids = None if case == "llama3_tied" else sorted(set(random_prompt(150, 60)))
        return p_eagle(random_p_eagle(models.hf(case), folder, ids, layers=2))

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "method", "shape"),
    [
        *(("llama", method, shape) for method in CONFIGS for shape in SHAPES),
        ("qwen3", "pard", "tree"),
        ("llama3_tied", "p_eagle", "tree"),
        ("mistral_window", "pard", "chain"),
    ],
)
def test_same_tokens(
    models: TinyModels, drafts: Drafts, case: str, method: str, shape: str
) -> None:
    """transformers' greedy text and the sampled text without speculation, eight at once in chunks,
    then over cached prefixes, and each alone."""
    config = {**drafts(method, case), **SHAPES[shape]}
    greedy = [models.greedy(case, prompt, 20) for prompt in PROMPTS]
    with open_llm(models.folder(case), max_batch_size=1) as llm:
        pairs = zip(PROMPTS, SAMPLED, strict=True)
        sampled = tokens([llm.generate(prompt, params) for prompt, params in pairs])
    with open_llm(models.folder(case), config, max_batch_size=8, max_num_tokens=60) as llm:
        for _ in range(2):
            assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == greedy
            assert tokens(llm.generate(PROMPTS, SAMPLED, use_tqdm=False)) == sampled
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)
        network = llm.config.drafts[0].network
        assert isinstance(network, CONFIGS[method])
        assert network.mask_token == MASK.get(method, 1)
    with open_llm(models.folder(case), config, max_batch_size=1) as llm:
        assert tokens([llm.generate(prompt, GREEDY) for prompt in PROMPTS]) == greedy


class Oracle:
    """The marginals behind a request's tokens from nothing: one pass of the LLM's own network over
    all of them and the masks, in caches of its own."""

    def __init__(self, llm: LLM) -> None:
        engine = llm.config
        (draft,) = engine.drafts
        assert isinstance(draft.network, PardConfig | Pard2Config | PEagleConfig)
        self.layout, self.config = engine.layout, draft.network
        self.shape: TreeShape = draft.speculation.tree
        self.blocks = torch.arange(self.layout.blocks_per_sequence, dtype=torch.int32)
        count, dtype = len(self.blocks), torch.float32
        self.target = inside.own_caches(llm, count)
        engine_of_draft: Any = inside.drafts(llm)[0]
        self.network: Any = inside.rollout(engine_of_draft)._module.model
        size = self.layout.tokens_per_block
        self.caches = new_caches(self.config.decoder, count, size, dtype)

    @torch.no_grad()
    def children(self, text: Sequence[int], sampling: SamplingColumns) -> Children:
        masks = [self.config.mask_token] * (self.shape.num_steps - 1)
        features, own = None, list(text)
        if not isinstance(self.config, PardConfig):
            _, hidden = self.target.forward(
                pack([RowGroup(text[:-1], 0, self.blocks)], self.layout)
            )
            assert hidden is not None
        if isinstance(self.config, Pard2Config):
            every = (torch.zeros_like(hidden[:1]), hidden, hidden[-1:].expand(len(masks), -1))
            features = self.network.fuse(torch.cat(every))
        if isinstance(self.config, PEagleConfig):
            unknown = self.network.mask_hidden.expand(len(masks), -1)
            features, own = self.network.fuse(torch.cat((hidden, unknown))), own[1:]
        ids, *rows = pack([RowGroup([*own, *masks], 0, self.blocks)], self.layout).rows
        _, ready = self.network.draft(ids, features, PackedRows(*rows), self.caches)
        logits = self.network.head(ready[len(own) - 1 :])

        def children(path: TokenPath, count: int) -> list[tuple[int, np.float32]]:
            values = sampling._replace(output_index=sampling.output_index + len(path))
            with torch.no_grad():
                row = logits[len(path)][None]
                found = draft_candidates(row, *values, self.network.token_map, count)
            return list(zip(found[0][0].tolist(), found[1][0].clamp(max=0).numpy(), strict=True))

        return children


def check_rollouts(llm: LLM) -> list[int]:
    """From now on compare every rollout; the list grows by the rows of each first pass."""
    drafter: Any = inside.drafter(llm)
    engine: Any = inside.drafts(llm)[0]
    oracle, rows = Oracle(llm), []
    first_pass, rollout = drafter._first_pass, engine.rollout
    under_way: list[Request] = []
    is_chain = oracle.shape.topk == 1 and oracle.shape.choices is None

    def watched_first_pass(requests: Sequence[Request]) -> Any:
        under_way[:] = requests
        return first_pass(requests)

    def checked_rollout(groups: Any, sampling: Any, hidden: Any, *rule: Any) -> Any:
        found = rollout(groups, sampling, hidden, *rule)
        assert len(groups) == len(under_way)
        for i, request in enumerate(under_way):
            own = SamplingColumns(*(column[i : i + 1] for column in sampling))
            nodes = grow_product(oracle.children(request.tokens, own), oracle.shape)
            if is_chain:  # its first step alone is enough where nobody can use more
                nodes = nodes[: found[0].shape[1]]
            assert_equal_trees(nodes, *(x[i] for x in found))
            rows.append(len(groups[i].tokens))
        return found

    drafter._first_pass, engine.rollout = watched_first_pass, checked_rollout
    return rows


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"max_batch_size": 4, "max_num_tokens": 9},
    "preempted": {"kv_cache_config": {"max_tokens": 80}, "tokens_per_block": 4},
    "padded": {"cuda_graph_config": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", ["chain", "tree", "static"])
@pytest.mark.parametrize("method", MASK)
def test_every_rollout(
    models: TinyModels, drafts: Drafts, method: str, shape: str, way: str
) -> None:
    """The tree of every step, cold and over cached prefixes, is what the text alone says."""
    if shape != "chain" and way == "padded":
        way = "plain"
    config = {**drafts(method, "llama"), **SHAPES[shape]}
    with open_llm(models.folder("llama"), config, **WAYS[way]) as llm:
        steps, rows = watch(llm), check_rollouts(llm)
        for _ in range(2):
            tokens(llm.generate(PROMPTS, FILTERED, use_tqdm=False))
        assert len(rows) > 20
        assert (sum(step.num_preempted for step in steps) > 0) == (way == "preempted")
        assert_no_leak(llm)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "chunked", "padded"])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_every_rollout_over_states_before(
    models: TinyModels, drafts: Drafts, shape: str, way: str
) -> None:
    """The same of PARD-2 while no prefix is cached, behind which its first row reads no state."""
    config = {**drafts("pard2", "llama"), **SHAPES[shape]}
    with open_llm(models.folder("llama"), config, **WAYS[way]) as llm:
        rows = check_rollouts(llm)
        tokens(llm.generate(PROMPTS, FILTERED, use_tqdm=False))
        assert len(rows) > 20
        assert_no_leak(llm)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_states_before_when_preempted(models: TinyModels, drafts: Drafts, shape: str) -> None:
    """The same texts, greedy and sampled, where requests lose their blocks with the rows that read
    states: a request that begins again reads them again, or goes on without."""
    folder, config = models.folder("llama"), {**drafts("pard2", "llama"), **SHAPES[shape]}
    with open_llm(folder, max_batch_size=1) as llm:
        pairs = zip(PROMPTS * 2, [GREEDY] * len(PROMPTS) + SAMPLED, strict=True)
        expected = tokens([llm.generate(prompt, params) for prompt, params in pairs])
    options = {**WAYS["preempted"], "max_batch_size": 8}
    with open_llm(folder, config, **options) as llm:
        steps, found = watch(llm), []
        for params in ([GREEDY] * len(PROMPTS), SAMPLED):
            found += tokens(llm.generate(PROMPTS, params, use_tqdm=False))
        assert found == expected
        assert sum(step.num_preempted for step in steps) > 0
        assert llm.get_metrics()["num_accepted_tokens"] > 0
        assert_no_leak(llm)


def test_fewer_steps_than_built(models: TinyModels, drafts: Drafts, tmp_path: Path) -> None:
    """The engine still writes all its masks: they have room, also in a cache without any to spare,
    and drafts are cut."""
    folder = models.folder("llama")
    config = {**drafts("pard", "llama"), "num_speculative_tokens": 12}
    options: dict[str, Any] = {"backend": "eager", "dtype": "float32", "tokens_per_block": 4}
    engine = build(folder, config, output_dir=tmp_path / "engine", **options)
    greedy = [models.greedy("llama", prompt, 20) for prompt in PROMPTS]
    smaller = {**config, "model": "draft", "num_speculative_tokens": 2}
    for kv in ({}, {"max_tokens": 96}):
        options = {"kv_cache_config": kv, "skip_tokenizer_init": True}
        with LLM(engine, smaller, **options) as llm:
            assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == greedy
            metrics = llm.get_metrics()
            assert len(metrics["acceptance_rate_per_pos"]) == 2
            if kv:
                with pytest.raises(RequestError, match=r"70 .* \+ 11 draft slots"):
                    llm.generate(random_prompt(30, 70), SamplingParams(max_tokens=20))
            assert_no_leak(llm)


@pytest.mark.parametrize(
    ("draft", "method", "message"),
    [
        ("pard", "draft_model", r"PARD, causal language model with mask token 7.*'pard'"),
        ("p_eagle", "eagle3", r"draft: P-EAGLE \(tensor mask_hidden.*write method 'p_eagle'"),
        ("model", "pard", "PARD draft has pard_token in its config.json; write method 'draft_mod"),
        ("pard", "p_eagle", "write method 'pard'"),
    ],
)
def test_another_methods_draft(
    models: TinyModels, drafts: Drafts, draft: str, method: str, message: str
) -> None:
    model = str(models.draft("llama")) if draft == "model" else drafts(draft, "llama")["model"]
    config = {"method": method, "model": model, "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match=message):
        open_llm(models.folder("llama"), config)


def test_the_mask_token_is_checked(models: TinyModels, drafts: Drafts) -> None:
    config = {**drafts("pard", "llama"), "num_speculative_tokens": 2}
    with open_llm(models.folder("llama"), {**config, "mask_token_id": 7}):
        pass
    with pytest.raises(ConfigError, match=r"mask_token_id=8 was asked for, .* trained with 7"):
        open_llm(models.folder("llama"), {**config, "mask_token_id": 8})


def test_vllm_spellings(models: TinyModels, drafts: Drafts) -> None:
    for method, name in (("pard", "draft_model"), ("p_eagle", "eagle3")):
        config = {**drafts(method, "llama"), "method": name, "parallel_drafting": True}
        with open_llm(models.folder("llama"), {**config, "num_speculative_tokens": 2}) as llm:
            assert llm.config.drafts[0].speculation.method == method


def test_both_in_a_hybrid(models: TinyModels, drafts: Drafts) -> None:
    """Each with its own cache and masks; the second reads a part of the target's states."""
    members = [{**drafts(method, "llama"), **SHAPES["chain"]} for method in MASK]
    config = {"method": "hybrid", "drafters": [*members, {"method": "suffix"}]}
    greedy = [models.greedy("llama", prompt, 20) for prompt in PROMPTS]
    with open_llm(models.folder("llama"), config, max_num_tokens=80) as llm:
        for _ in range(2):
            assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == greedy
        assert [draft.network.kind for draft in llm.config.drafts] == list(MASK)
        assert llm.get_metrics()["num_accepted_tokens"] > 0
        assert_no_leak(llm)
