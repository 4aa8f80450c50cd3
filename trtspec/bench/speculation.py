"""Speed and acceptance of speculation beside its own baseline, on code no embedded model has seen.

    python -m trtspec.bench.speculation [--methods ngram:4 draft_model:4 eagle3:5 eagle3:4,5,24 ...]

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
from trtspec.errors import ConfigError
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
    """One line of the table; times are means of a step."""
    metrics: dict[str, Any] = contender.llm.get_metrics()
    count = sum(map(len, contender.tokens))
    ratios = [b / c for b, c in zip(baseline.seconds, contender.seconds, strict=True)]
    same = "yes" if contender.tokens == baseline.tokens else "NO"
    parts = " ".join(
        f"{metrics[name] / max(metrics['num_engine_steps'], 1):7.3f}"
        for name in ("target_ms", "draft_ms", "host_ms")
    )
    return (
        f"{contender.name:20} {median(ratios):6.2f} x {count / median(contender.seconds):9.1f} "
        f"{metrics['acceptance_length']:7.2f} {metrics['acceptance_rate']:6.2f} "
        f"{metrics['step_ms']:8.3f} {parts} {metrics['host_share']:6.1%}   {same}"
    )


def method_config(text: str, drafts: dict[str, str]) -> dict[str, Any]:
    """What ``method:K`` (a chain) or ``method:k,D,N`` (a tree) stands for."""
    method, _, numbers = text.partition(":")
    names = ("num_speculative_tokens",), ("topk", "num_steps", "num_draft_tokens")
    values = numbers.split(",")
    keys = {len(n): n for n in names}.get(len(values))
    if keys is None or not all(value.isdecimal() for value in values):
        raise ConfigError(f"{text!r} is not method:K or method:k,D,N, such as eagle3:4,5,24")
    config: dict[str, Any] = {"method": method, **dict(zip(keys, map(int, values), strict=True))}
    return {**config, "model": drafts[method]} if method in drafts else config


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", default="trtspec-tiny")
    add("--draft", default="trtspec-tiny-draft", help="draft model")
    add("--eagle", default="trtspec-tiny-eagle3", help="EAGLE head")
    add("--dtype", default="auto")
    add(
        "--methods",
        nargs="*",
        default=["ngram:4", "draft_model:4", "eagle3:5", "eagle3:4,5,24"],
        help="method:K for a chain, method:k,D,N for a tree (default: %(default)s)",
    )
    add("--num_prompts", type=int, default=16)
    add("--prompt_tokens", type=int, default=128)
    add("--max_tokens", type=int, default=128)
    add("--batch_size", type=int, default=1)
    add("--temperature", type=float, default=0.0)
    add("--rounds", type=int, default=3)
    args = parser.parse_args(argv)

    drafts = {"draft_model": args.draft, "eagle": args.eagle, "eagle3": args.eagle}
    methods: dict[str, dict[str, Any] | None] = {BASELINE: None}
    methods |= {text: method_config(text, drafts) for text in args.methods}

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
        f"{'method':20} {'speed-up':>8} {'tokens/s':>9} {'length':>7} {'rate':>6} {'step ms':>8} "
        f"{'target':>7} {'draft':>7} {'host':>7} {'host':>6}   same text"
    )
    for contender in contenders:
        print(report(contender, contenders[0]))
        contender.llm.shutdown()


if __name__ == "__main__":
    main()
