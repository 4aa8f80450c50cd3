"""What prompts find of others' texts, beside what they say where nothing is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtspec import LLM, SamplingParams

from .helpers import assert_no_leak, open_llm, random_prompt

PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)


def _said(llm: LLM, prompt: list[int]) -> tuple[list[int], int, list[int]]:
    """A prompt's text, what was found of it, and what was drafted and accepted."""
    before = llm.get_metrics()
    output = llm.generate(prompt, PARAMS, use_tqdm=False)
    after = llm.get_metrics()
    counts = [after[key] - before[key] for key in ("num_draft_tokens", "num_accepted_tokens")]
    return output.outputs[0].token_ids, output.num_cached_tokens, counts


def check_hits_at_every_offset(
    folder: Path, speculation: Any, apart: int, vocab: int, base: int = 14
) -> None:
    """Of a target that keeps states, with snapshots so many blocks of four apart: a prompt that
    leaves another's text behind so many tokens begins at the last border before, in the other's
    prompt or its output, with the text and the drafts of one that begins at its first token."""
    border = 4 * apart

    def opened(**kv: Any) -> LLM:
        # Prompts are cut alike with snapshots and without.
        sizes = {"max_seq_len": 96, "tokens_per_block": 4, "max_num_tokens": border}
        config = {"snapshot_blocks": apart, **kv}
        return open_llm(folder, speculation, **sizes, max_batch_size=4, kv_cache_config=config)

    with opened(enable_block_reuse=False) as cold, opened() as warm:
        prompt = random_prompt(7, base, vocab)
        whole = prompt + _said(cold, prompt)[0]
        _said(warm, prompt)
        for length in range(1, len(whole)):
            prompt = whole[:length] + random_prompt(40 + length, 1 + length % 3, vocab)
            text, cached, counts = _said(warm, prompt)
            assert cached == length // border * border
            assert (text, 0, counts) == _said(cold, prompt), length
        assert_no_leak(warm)
