"""Tiny checkpoints, LLMs over them, transformers' greedy text, and a log of an executor's steps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trtspec import LLM, RequestOutput, SamplingParams
from trtspec.executor.step.step_plan import ScheduledRequest

from ..models.tiny_hf import VOCAB, tiny_model

PARAMS_40 = SamplingParams(max_tokens=40)
GREEDY_24 = SamplingParams(max_tokens=24)
SAMPLED_24 = [
    replace(GREEDY_24, temperature=0.8, seed=seed) for seed in (0, 1, 2**63 + 5, -7, 4, 4, 6, 7)
]
"""For the prompts of `eight_prompts`."""


def ngram(length: int, **options: Any) -> dict[str, Any]:
    return {"method": "ngram", "num_speculative_tokens": length, "prompt_lookup_min": 1, **options}


def chain(model: Path, length: int) -> dict[str, Any]:
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": length}


def tree(model: Path, topk: int, depth: int, rows: int) -> dict[str, Any]:
    return {**chain(model, depth), "topk": topk, "num_draft_tokens": rows}


PLAIN_METHODS = ("none", "ngram", "chain", "tree")


def plain_methods(draft: Path) -> dict[str, Any]:
    """The configs of `PLAIN_METHODS`, by name, with a draft model."""
    configs = None, ngram(4), chain(draft, 4), tree(draft, 2, 3, 7)
    return dict(zip(PLAIN_METHODS, configs, strict=True))


def random_prompt(seed: int, length: int, vocab: int = VOCAB) -> list[int]:
    return torch.randint(vocab, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def eight_prompts(seed: int) -> list[list[int]]:
    """Random ones of lengths about a block's borders, and one that repeats itself."""
    prompts = [random_prompt(seed + i, n) for i, n in enumerate((30, 1, 32, 3, 16, 17, 40))]
    return [*prompts, random_prompt(seed + 10, 6) * 4]


class TinyModels:
    """The cases of `tiny_hf` as folders, a draft for each that often agrees, greedy references."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hf = cache(tiny_model)
        self.folder = cache(self._folder)
        self.draft = cache(self._draft)
        self._greedy = cache(self._generate)

    def _folder(self, case: str) -> Path:
        return self.save(self.hf(case), case)

    def _draft(self, case: str) -> Path:
        """The target with noise on its weights: wrong often enough, right often enough."""
        model = copy.deepcopy(self.hf(case))
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.15 * weight.std() * torch.randn(weight.shape, generator=noise)
        return self.save(model, f"{case}-draft")

    def save(self, model: PreTrainedModel, name: str) -> Path:
        folder = self.root / name
        model.save_pretrained(folder)
        return folder

    def greedy(self, case: str, prompt: Sequence[int], max_tokens: int = 40) -> list[int]:
        """What transformers generates after the prompt, the end token included."""
        return list(self._greedy(case, tuple(prompt), max_tokens))

    def _generate(self, case: str, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        text = self.hf(case).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )
        return tuple(text[0, len(prompt) :].tolist())


def open_llm(folder: Path, speculation: Any = None, **options: Any) -> LLM:
    """An eager float32 LLM over token ids, unless the options say otherwise."""
    defaults = {"backend": "eager", "dtype": "float32", "skip_tokenizer_init": True}
    return LLM(folder, speculation, **{**defaults, **options})


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The token ids of every sequence of every output; a failed request fails the test."""
    for output in outputs:
        if output.error is not None:
            raise output.error
    return [completion.token_ids for output in outputs for completion in output.outputs]


@dataclass(frozen=True)
class Step:
    """One executor step: what was scheduled, whose blocks were taken, engine calls."""

    items: tuple[ScheduledRequest, ...]
    num_preempted: int
    target_calls: int
    draft_calls: int
    num_ended: int

    @property
    def only_generates(self) -> bool:
        return bool(self.items) and all(item.is_generation for item in self.items)


def watch(llm: LLM) -> list[Step]:
    """A list that grows by a `Step` whenever the executor has taken one."""
    executor, steps = llm._executor, []
    schedule, step = executor._scheduler.schedule, executor.step
    batches = []

    def watched_schedule() -> Any:
        batches.append(schedule())
        return batches[-1]

    def watched_step() -> Any:
        before = llm.get_metrics()
        outputs = step()
        after = llm.get_metrics()
        batch = batches.pop()
        calls = [after[k] - before[k] for k in ("num_target_calls", "num_draft_calls")]
        ended = sum(output.request.is_finished for output in outputs)
        steps.append(Step(batch.items, len(batch.preempted), *calls, ended))
        return outputs

    executor._scheduler.schedule = watched_schedule
    executor.step = watched_step
    return steps


def assert_no_leak(llm: LLM) -> None:
    """With no request left, every block of every cache can be handed out again, and the drafter has
    forgotten them all."""
    drafter, resources = llm._executor._drafter, llm._executor._resources
    assert not drafter.live_requests
    resources.check_invariants()
    for manager in resources.all:
        assert manager.num_free_blocks == manager.num_blocks


WAYS = (
    "none", "ngram", "shallow", "chunked", "preempted", "without_reuse", "padded", "padded_none",
    "padded_ngram",
)  # fmt: skip


def assert_way(
    folder: Path,
    llm: LLM,
    name: str,
    shallow: dict[str, Any],
    prompts: list[list[int]],
    runs: Sequence[Any],
) -> None:
    """An engine folder opened in one of `WAYS` gives the texts that ``llm`` gives for every set of
    sampling options in ``runs``. ``shallow``: a smaller tree of the folder's own draft."""
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "none": (False, {}),
        "ngram": (ngram(6), {}),
        "shallow": (shallow, {}),
        "chunked": (None, {"max_num_tokens": 9}),
        "preempted": (None, {"kv_cache_config": {"max_tokens": 96}}),
        "without_reuse": (None, {"kv_cache_config": {"enable_block_reuse": False}}),
        "padded": (None, {"cuda_graph_config": True}),
        "padded_none": (False, {"cuda_graph_config": True}),
        "padded_ngram": (ngram(6), {"cuda_graph_config": True}),
    }
    config, options = ways[name]
    with LLM(folder, config, skip_tokenizer_init=True, **options) as other:
        steps = watch(other)
        for params in runs:
            expected = tokens(llm.generate(prompts, params, use_tqdm=False))
            assert tokens(other.generate(prompts, params, use_tqdm=False)) == expected
        assert (sum(step.num_preempted for step in steps) > 0) == (name == "preempted")
        assert_no_leak(other)


def assert_engine_calls(llm: LLM, prompts: list[list[int]], passes: int = 1) -> None:
    """One call of the target in every pure generation step, and of the draft if it drafts one for
    each of its ``passes``, fewer where texts end; one more may then fill a block of its cache."""
    steps = watch(llm)
    llm.generate(prompts, PARAMS_40, use_tqdm=False)
    pure = [step for step in steps if step.only_generates]
    assert len(pure) > 5
    for step in pure:
        drafts = any(item.max_nodes for item in step.items)
        assert step.target_calls == 1
        assert drafts <= step.draft_calls <= drafts * passes + (step.num_ended > 0)
    assert any(step.draft_calls >= passes for step in pure)
