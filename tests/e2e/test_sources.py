"""Which member of a union proposed what: the figures are the steps' own."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import SamplingParams
from trtspec.ops.draft_batch import DraftBatch

from .. import inside
from .helpers import TinyModels, ngram, open_llm, random_prompt, tree
from .hybrid_drafts import hybrid

PROMPTS = [random_prompt(77, 5) * 3, random_prompt(78, 9)]
PARAMS = SamplingParams(max_tokens=30, ignore_eos=True)


@pytest.mark.parametrize("first", ["ngram", "draft_model"])
def test_figures_by_member(models: TinyModels, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of ``members``, though those without an engine draft first; a token that both
    propose is of who drafts first."""
    index, draft = ngram(3), tree(models.draft("llama"), 2, 2, 5)
    members = (index, draft) if first == "ngram" else (draft, index)
    expected: dict[str, list[int]] = {"drafted": [0, 0], "accepted": [0, 0]}
    own: list[tuple[list[Any], Any]] = []
    merge = DraftBatch.merge

    def merged(batches: list[DraftBatch], sources: list[int]) -> DraftBatch:
        own.append(([{*_paths(tree)} for tree in batches[0]], sources[0]))
        return merge(batches, sources)

    with open_llm(models.folder("llama"), hybrid(*members), max_batch_size=1) as llm:
        monkeypatch.setattr(DraftBatch, "merge", merged)
        executor = inside.executor(llm)
        launch, settle = executor._sampler.launch, executor._settle
        verified: list[DraftBatch] = []

        def launched(target: Any, plan: Any, drafts: DraftBatch) -> Any:
            verified.append(drafts)
            return launch(target, plan, drafts)

        def settled(step: Any) -> Any:
            outputs = settle(step)
            if verified[-1].counts[0]:
                ((held,), source) = own[-1]
                paths = _paths(verified[-1][0])
                for path in paths:
                    expected["drafted"][source if path in held else 1 - source] += 1
                emitted = tuple(outputs[0].tokens)
                for count in range(1, len(emitted)):
                    accepted = emitted[:count]
                    expected["accepted"][source if accepted in held else 1 - source] += 1
            return outputs

        executor._sampler.launch, executor._settle = launched, settled
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        figures = llm.get_metrics()
    assert figures["num_draft_tokens_per_source"] == expected["drafted"]
    assert figures["num_accepted_tokens_per_source"] == expected["accepted"]
    assert min(expected["drafted"]) > 0 and sum(expected["accepted"]) > 10
    assert own and {source for _, source in own} == {0 if first == "ngram" else 1}


def _paths(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(tree.path_tokens(node)) for node in range(len(tree))]
