"""Speed and acceptance of speculation beside its own baseline, on code no embedded model has seen.

    python -m trtspec.bench.speculation [--model M --draft D --max_tokens N --batch_size B ...]

Prompts are the beginnings of held-out standard library files. Every method decodes all of them in
the same process; rounds alternate between methods so that a drifting machine treats all alike, and
speeds are given as ratios to the baseline of the same rounds (median over rounds).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from trtspec.bench.dataset import held_out_prompts
from trtspec.config.sampling import SamplingParams
from trtspec.llmapi.llm import LLM

BASELINE = "none"


@dataclass
class Contender:
    """One method: its model, and what each round measured."""

    name: str
    llm: LLM
    seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    def run(self, prompts: Sequence[list[int]], params: SamplingParams) -> None:
        began = perf_counter()
        outputs = self.llm.generate(list(prompts), params, use_tqdm=False)
        self.seconds.append(perf_counter() - began)
        self.tokens = [output.outputs[0].token_ids for output in outputs]


def report(contender: Contender, baseline: Contender) -> str:
    """One line of the table."""
    metrics: dict[str, Any] = contender.llm.get_metrics()
    count = sum(map(len, contender.tokens))
    ratios = [b / c for b, c in zip(baseline.seconds, contender.seconds, strict=True)]
    same = "yes" if contender.tokens == baseline.tokens else "NO"
    return (
        f"{contender.name:24} {median(ratios):6.2f} x {count / median(contender.seconds):10.1f} "
        f"{metrics['acceptance_length']:8.2f} {metrics['acceptance_rate']:8.2f} "
        f"{metrics['step_ms']:9.3f} {metrics['host_share']:8.1%}   {same}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", default="trtspec-tiny")
    add("--draft", default="trtspec-tiny-draft")
    add("--dtype", default="auto")
    add("--draft_lens", type=int, nargs="*", default=[2, 4, 6], help="K of the draft model")
    add("--ngram_lens", type=int, nargs="*", default=[4], help="K of n-gram lookup")
    add("--trees", nargs="*", default=[], help="trees k,D,N of the draft model")
    add("--num_prompts", type=int, default=16)
    add("--prompt_tokens", type=int, default=128)
    add("--max_tokens", type=int, default=128)
    add("--batch_size", type=int, default=1)
    add("--temperature", type=float, default=0.0)
    add("--rounds", type=int, default=3)
    args = parser.parse_args(argv)

    methods: dict[str, dict[str, Any] | None] = {BASELINE: None}
    for length in args.ngram_lens:
        methods[f"ngram K={length}"] = {"method": "ngram", "num_speculative_tokens": length}
    draft = {"method": "draft_model", "model": args.draft}
    for length in args.draft_lens:
        methods[f"draft_model K={length}"] = {**draft, "num_speculative_tokens": length}
    for tree in args.trees:
        k, depth, rows = map(int, tree.split(","))
        shape = {"topk": k, "num_steps": depth, "num_draft_tokens": rows}
        methods[f"draft_model ({tree})"] = {**draft, **shape}

    options = {"dtype": args.dtype, "max_batch_size": args.batch_size}
    options["kv_cache_config"] = {"enable_block_reuse": False}  # every round prefills anew
    contenders = [
        Contender(name, LLM(args.model, config, **options)) for name, config in methods.items()
    ]
    tokenizer = contenders[0].llm.tokenizer
    chosen = held_out_prompts(tokenizer, args.num_prompts, args.prompt_tokens)
    prompts = [prompt.token_ids for prompt in chosen]
    params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=0)
    for contender in contenders:
        contender.llm.generate(prompts[0], SamplingParams(max_tokens=8))
    for _ in range(args.rounds):
        for contender in contenders:
            contender.run(prompts, params)

    print(
        f"{len(prompts)} prompts of {args.prompt_tokens} tokens, {args.max_tokens} new ones, batch "
        f"{args.batch_size}, temperature {args.temperature}, {args.rounds} rounds"
    )
    print(
        f"{'method':24} {'speed-up':>8} {'tokens/s':>10} {'length':>8} {'rate':>8} {'step ms':>9} "
        f"{'host':>8}   same text"
    )
    for contender in contenders:
        print(report(contender, contenders[0]))
        contender.llm.shutdown()


if __name__ == "__main__":
    main()
