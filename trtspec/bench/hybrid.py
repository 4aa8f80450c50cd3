"""A hybrid beside its members, on texts that favour the one, the other, or neither.

    python -m trtspec.bench.hybrid --model M --eagle E [--workloads editing code prose]

Suffix decoding, an EAGLE-3 chain and the hybrid of both decode the same prompts, all made of
held-out standard library files: `editing` repeats a piece of code and begins it once more, `code`
is the beginning of a file, `prose` the beginning of a docstring. Rounds alternate between the
methods, so that a drifting machine treats all alike; speeds are medians over the rounds.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from trtspec.bench.corpus import standard_library
from trtspec.bench.dataset import held_out_prompts
from trtspec.bench.rival import BASELINE, Rival
from trtspec.config.sampling import SamplingParams
from trtspec.llmapi.build import build
from trtspec.llmapi.llm import LLM

HYBRID, ADAPTIVE = "hybrid", "hybrid adaptive"
AGAIN = 8
"""Tokens of the second copy that an editing prompt ends with."""


def editing_prompts(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """A piece of a file twice and its beginning once more, ``length`` tokens in all."""
    piece = (length - AGAIN) // 2
    pieces = [prompt.token_ids for prompt in held_out_prompts(tokenizer, count, piece)]
    return [[*ids, *ids, *ids[:AGAIN]] for ids in pieces]


def code_prompts(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """The beginnings of files."""
    return [prompt.token_ids for prompt in held_out_prompts(tokenizer, count, length)]


def prose_prompts(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """The beginnings of docstrings that are at least half as long again, quotes included."""
    prompts: list[list[int]] = []
    for text in docstrings(standard_library()[1]):
        ids: list[int] = tokenizer('"""' + text)["input_ids"]
        if 2 * len(ids) >= 3 * length:
            prompts.append(ids[:length])
        if len(prompts) == count:
            break
    return prompts


def docstrings(files: Sequence[str]) -> Iterator[str]:
    """Those of modules, classes and functions, in the order of the files."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for file in files:
        try:
            tree = ast.parse(file)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text:
                yield text


WORKLOADS: Mapping[str, Callable[[Any, int, int], list[list[int]]]] = {
    "editing": editing_prompts,
    "code": code_prompts,
    "prose": prose_prompts,
}


def configs(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The methods by name."""
    suffix = {
        "method": "suffix",
        "num_speculative_tokens": args.suffix_length,
        # Every round has the same answers: with those of the last one it would foresee all.
        "suffix_decoding_max_cached_requests": 0,
    }
    eagle = {"method": "eagle3", "model": args.eagle, "num_speculative_tokens": args.eagle_length}
    hybrid = {"method": "hybrid", "drafters": [suffix, eagle]}
    return {
        "suffix": suffix,
        "eagle3": eagle,
        HYBRID: hybrid,
        ADAPTIVE: {**hybrid, "adaptive": True},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", default="trtspec-tiny")
    add("--eagle", default="trtspec-tiny-eagle3", help="EAGLE-3 head")
    add("--dtype", default="auto")
    add("--workloads", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    add("--suffix_length", type=int, default=16, help="nodes of suffix decoding")
    add("--eagle_length", type=int, default=5, help="K of the chain")
    add("--num_prompts", type=int, default=4)
    add("--prompt_tokens", type=int, default=256)
    add("--max_tokens", type=int, default=96)
    add("--batch_size", type=int, default=1)
    add("--temperature", type=float, default=0.0)
    add("--rounds", type=int, default=5)
    args = parser.parse_args(argv)

    methods = configs(args)
    options: dict[str, Any] = {"dtype": args.dtype, "max_batch_size": args.batch_size}
    folder = build(args.model, methods[HYBRID], **options)
    options["kv_cache_config"] = {"enable_block_reuse": False}  # every round prefills anew
    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, seed=0, ignore_eos=True
    )
    print(f"tokens/s (speed-up; acceptance length), medians of {args.rounds} rounds", flush=True)
    for name in args.workloads:
        rivals = [Rival(BASELINE, LLM(folder, False, **options))]
        rivals += [Rival(n, LLM(folder, c, **options)) for n, c in methods.items()]
        tokenizer = rivals[0].llm.tokenizer
        prompts = WORKLOADS[name](tokenizer, args.num_prompts, args.prompt_tokens)
        for rival in rivals:
            rival.run(prompts, params)  # once to warm up, and to learn
            rival.seconds.clear()
        for _ in range(args.rounds):
            for rival in rivals:
                rival.run(prompts, params)
        times = {c.name: median(c.seconds) for c in rivals}
        lengths = {c.name: c.llm.get_metrics()["acceptance_length"] for c in rivals}
        for rival in rivals:
            own = times[rival.name]
            count = sum(map(len, rival.tokens))
            same = "" if rival.tokens == rivals[0].tokens else "   ANOTHER TEXT"
            print(
                f"{name:8} {rival.name:16} {count / own:8.1f} "
                f"({times[BASELINE] / own:5.2f}; {lengths[rival.name]:5.2f}){same}",
                flush=True,
            )
            rival.llm.shutdown()
        longest = max(lengths["suffix"], lengths["eagle3"])
        fastest = min(times["suffix"], times["eagle3"])
        print(
            f"{name:8} hybrid / the better of the two: {lengths[HYBRID] / longest:.3f} in "
            f"acceptance length; adaptive, {fastest / times[ADAPTIVE]:.3f} in tokens/s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
