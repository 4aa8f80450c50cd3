"""The texts that eight prompts go on with, and the ways of serving that must give them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    open_llm,
    tokens,
    watch,
)


class KnownTexts:
    """Of every tiny target, behind `eight_prompts`: transformers' greedy texts, and sampled ones
    without speculation. Test modules derive from it to make drafts."""

    def __init__(self, models: TinyModels, root: Path, prompts: list[list[int]]) -> None:
        self.models, self.root = models, root
        self.prompts = prompts
        self.sampled = cache(self._sample)

    def greedy(self, case: str) -> list[list[int]]:
        return [self.models.greedy(case, prompt, 24) for prompt in self.prompts]

    def _sample(self, case: str) -> list[list[int]]:
        """Each prompt alone."""
        with open_llm(self.models.folder(case), max_batch_size=1) as llm:
            pairs = zip(self.prompts, SAMPLED_24, strict=True)
            return tokens([llm.generate(prompt, params) for prompt, params in pairs])

    def assert_same(self, case: str, config: dict[str, Any]) -> dict[str, Any]:
        """The same texts of eight at once in chunks and with few rows for drafts, again over cached
        prefixes, then alone; returns the metrics of the eight."""
        prompts, folder = self.prompts, self.models.folder(case)
        greedy, sampled = self.greedy(case), self.sampled(case)
        with open_llm(folder, config, max_batch_size=8, max_num_tokens=60) as llm:
            steps = watch(llm)
            for _ in range(2):
                assert tokens(llm.generate(prompts, GREEDY_24, use_tqdm=False)) == greedy
                assert tokens(llm.generate(prompts, SAMPLED_24, use_tqdm=False)) == sampled
            metrics = llm.get_metrics()
            fed = [item for step in steps for item in step.items if not item.is_generation]
            assert any(not item.samples for item in fed), "no prompt was cut"
            assert any(item.start and item.start % 16 == 0 for item in fed), "no prefix was reused"
            assert_no_leak(llm)
        with open_llm(folder, config, max_batch_size=1) as llm:
            for i in (0, 1):
                alone = [llm.generate(prompts[i], params) for params in (GREEDY_24, SAMPLED_24[i])]
                assert tokens(alone) == [greedy[i], sampled[i]]
        return metrics

    def assert_same_when_preempted(self, case: str, config: dict[str, Any]) -> None:
        """The same texts where the blocks do not last for all."""
        kv = {"max_tokens": 160}
        options = {"kv_cache_config": kv, "tokens_per_block": 4, "max_batch_size": 8}
        with open_llm(self.models.folder(case), config, **options) as llm:
            steps = watch(llm)
            for params, texts in ((GREEDY_24, self.greedy), (SAMPLED_24, self.sampled)):
                found = tokens(llm.generate(self.prompts, params, use_tqdm=False))
                assert found == texts(case)
            assert sum(step.num_preempted for step in steps) > 0
            assert_no_leak(llm)
