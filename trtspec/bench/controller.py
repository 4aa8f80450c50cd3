"""What the adaptive controller makes of forced acceptance, beside every fixed draft length.

    python -m trtspec.bench.controller --model M --draft D [--batches 1 4 16] [--rates 0.1 0.5 0.9]

One engine folder serves all settings: no speculation, chains of fixed lengths cut from one rollout,
`adaptive=True`, and `auto` with the same draft. A rate is the chance that a draft is accepted once
the one before it was (`simulate_acceptance`), so the text means nothing. In every round each
setting runs once, in an order drawn anew, so that a machine that drifts from second to second
treats all alike. Speeds are medians over the rounds, of which a batch of 1 has more; the best fixed
setting is that of the highest. Shares are medians of the shares in the same round. Fixed settings
that are behind after some rounds take no part in the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from trtspec.bench.data.dataset import held_out_prompts
from trtspec.bench.runs.rival import BASELINE, Rival
from trtspec.bench.synthetic.engine import open_llm
from trtspec.bench.synthetic_flag import add_synthetic_flag, engine_maker
from trtspec.builder.available_drafts import FoundDraft, available_drafts
from trtspec.config.sampling import SamplingParams

ADAPTIVE, AUTO = "adaptive", "auto"
LEARNING = (ADAPTIVE, AUTO)
_ALL_ROUNDS = (BASELINE, *LEARNING)
_LEAST = {1: 0.75, 5: 0.9, 15: 0.95}
"""A fixed setting that is below this share of the best after that many rounds is dropped."""


def settings(
    draft: FoundDraft, lengths: Sequence[int], rate: float
) -> dict[str, Mapping[str, Any]]:
    """The competing speculative configs, by name; the baseline has none."""
    longest = max(lengths)

    def config(length: int) -> dict[str, Any]:
        rates = [rate ** (i + 1) for i in range(length)]
        return {
            "method": draft.method,
            "model": draft.name,
            "num_speculative_tokens": length,
            "simulate_acceptance": rates,
        }

    fixed = {f"K={length}": config(length) for length in lengths}
    adaptive = config(longest)
    # Without a model: beside the draft that the engine's folder holds.
    auto = {"method": AUTO, "simulate_acceptance": adaptive["simulate_acceptance"]}
    return {**fixed, ADAPTIVE: {**adaptive, "adaptive": True}, AUTO: auto}


def tokens_per_second(rival: Rival) -> list[float]:
    """Of each round; every prompt got all its tokens."""
    count = sum(map(len, rival.tokens))
    return [count / seconds for seconds in rival.seconds]


def rounds_of(batch: int, rounds: int) -> int:
    """Twice as many rounds for a single request: such a round is short, and tells less."""
    return 2 * rounds if batch == 1 else rounds


def measure_cell(
    rivals: Sequence[Rival], prompts: Sequence[list[int]], args: argparse.Namespace
) -> dict[str, list[float]]:
    """Tokens per second of each setting for one batch, by round."""
    warm_up = SamplingParams(max_tokens=args.warm_up, seed=0, ignore_eos=True)
    for rival in rivals:
        rival.seconds.clear()
        learns = rival.name in LEARNING
        short = SamplingParams(max_tokens=8, seed=0, ignore_eos=True)
        rival.llm.generate(list(prompts), warm_up if learns else short, use_tqdm=False)
    left, rng = list(rivals), Random(0)
    for i in range(rounds_of(len(prompts), args.rounds)):
        if i in _LEAST:
            speeds = {c.name: median(tokens_per_second(c)) for c in left}
            least = _LEAST[i] * max(speeds.values())
            left = [c for c in left if c.name in _ALL_ROUNDS or speeds[c.name] >= least]
        # By the seeds, other drafts are accepted of every request in every round.
        params = [
            SamplingParams(max_tokens=args.max_tokens, seed=1000 * i + j, ignore_eos=True)
            for j in range(len(prompts))
        ]
        for rival in rng.sample(left, len(left)):
            rival.run(prompts, params)
    return {c.name: tokens_per_second(c) for c in rivals}


def report(
    batch: int, rate: float, speeds: Mapping[str, Sequence[float]]
) -> tuple[str, Mapping[str, float]]:
    """A line of the table; adaptive's speed as a share of the best other setting's, and those of
    adaptive and auto relative to no speculation, by name."""
    medians = {name: median(rounds) for name, rounds in speeds.items()}
    whole = len(speeds[ADAPTIVE])
    others = [name for name in medians if name not in LEARNING and len(speeds[name]) == whole]
    best = max(others, key=lambda name: medians[name])

    def share(name: str, other: str) -> float:
        return median(a / b for a, b in zip(speeds[name], speeds[other], strict=True))

    shares = {f"{ADAPTIVE} / best": share(ADAPTIVE, best)}
    shares.update({f"{name} / {BASELINE}": share(name, BASELINE) for name in LEARNING})
    numbers = " ".join(f"{speed:8.1f}" for speed in medians.values())
    ratios = " ".join(f"{value:{len(name)}.3f}" for name, value in shares.items())
    return f"{batch:5} {rate:5.2f} {numbers}   {best:>5}  {ratios}", shares


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", default="trtspec-tiny")
    add("--draft", required=True, help="HF folder or id, or embedded name, of any kind of draft")
    add("--dtype", default="auto")
    add("--batches", type=int, nargs="*", default=[1, 4, 16])
    add("--rates", type=float, nargs="*", default=[0.1, 0.5, 0.9])
    add("--lengths", type=int, nargs="*", default=[1, 2, 3, 5], help="of the fixed settings")
    add("--prompt_tokens", type=int, default=16)
    add("--max_tokens", type=int, default=64)
    add("--warm_up", type=int, default=96, help="tokens to learn by before the rounds")
    add("--rounds", type=int, default=5, help="of batches of 2 and more; of 1, twice as many")
    add_synthetic_flag(parser)
    args = parser.parse_args(argv)

    (draft,) = available_drafts(args.model, [args.draft])
    options: dict[str, Any] = {"dtype": args.dtype, "max_batch_size": max(args.batches)}
    longest = settings(draft, [max(args.lengths)], 0.5)[ADAPTIVE]
    folder = engine_maker(args)(args.model, longest, **options)
    options["kv_cache_config"] = {"enable_block_reuse": False}  # every round prefills anew
    baseline = Rival(BASELINE, open_llm(folder, False, **options))
    chosen = held_out_prompts(baseline.llm.tokenizer, max(args.batches), args.prompt_tokens)
    prompts = [prompt.token_ids for prompt in chosen]
    rounds = ", ".join(
        f"{rounds_of(batch, args.rounds)} of batch {batch}" for batch in args.batches
    )
    print(f"tokens/s, {args.max_tokens} tokens a request, medians of rounds: {rounds}")
    names = [BASELINE, *settings(draft, args.lengths, 0.5)]
    head = " ".join(f"{name:>8}" for name in names)
    ratios = f"{ADAPTIVE} / best", *(f"{name} / {BASELINE}" for name in LEARNING)
    print(f"batch  rate {head}    best  {' '.join(ratios)}", flush=True)
    least = dict.fromkeys(ratios, float("inf"))
    for rate in args.rates:
        configs = settings(draft, args.lengths, rate)
        rivals = [Rival(n, open_llm(folder, c, **options)) for n, c in configs.items()]
        for batch in args.batches:
            speeds = measure_cell([baseline, *rivals], prompts[:batch], args)
            line, shares = report(batch, rate, speeds)
            least = {name: min(known, shares[name]) for name, known in least.items()}
            print(line, flush=True)
        for rival in rivals:
            rival.llm.shutdown()
    print(f"at least: {', '.join(f'{name} {share:.3f}' for name, share in least.items())}")
    baseline.llm.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
