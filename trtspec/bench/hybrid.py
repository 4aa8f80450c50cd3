"""A hybrid beside its members, on texts that favour the one, the other, or neither.

    python -m trtspec.bench.hybrid --model M --drafts D --drafters suffix:16 eagle3:5
        [--workloads editing code prose]

The drafters and the hybrid of all decode the same prompts, made of held-out standard library files:
`editing` repeats a piece of code and begins it once more, `code` is the beginning of a file,
`prose` that of a docstring. Rounds alternate between the methods, so that a drifting machine
treats all alike; speeds are medians over the rounds.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from trtspec.bench.data.corpus import standard_library
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.bench.runs.methods import read_methods
from trtspec.bench.runs.rival import BASELINE, Rival
from trtspec.bench.synthetic.engine import open_llm
from trtspec.bench.synthetic_flag import add_synthetic_flag, engine_maker
from trtspec.builder.available_drafts import available_drafts
from trtspec.config.decoding import DecodingConfig
from trtspec.config.sampling import SamplingParams
from trtspec.errors import ConfigError
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.speculative.registry import methods, methods_taking

HYBRID, ADAPTIVE = "all", "all adaptive"
MEMBERS = "drafters"
"""The option that holds the drafters."""
AGAIN = 8
"""Tokens of the second copy that an editing prompt ends with."""


def editing_prompts(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """A piece of a file twice, followed by its beginning, ``length`` tokens in all."""
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
    """Docstrings of modules, classes and functions, in the order of the files."""
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


def members(args: argparse.Namespace) -> dict[str, DecodingConfig]:
    """The drafters by name; none of them remembers earlier answers within a round."""
    found = {}
    for each in read_methods(args.drafters, available_drafts(args.model, args.drafts)):
        if each.config is not None:
            options = methods()[each.config.method].forgetful
            found[each.name] = replace(each.config, **options)
    if len(found) < 2:
        raise ConfigError(f"--drafters {' '.join(args.drafters)}: a hybrid is made of two or more")
    return found


def merged(drafters: Collection[DecodingConfig]) -> DecodingConfig:
    """The hybrid of them, by the method that combines several."""
    (method,) = methods_taking(MEMBERS)
    options = {"method": method, MEMBERS: [speculative_to_dict(each) for each in drafters]}
    config = parse_speculative_config(options)
    assert config is not None, "it names a method"
    return config


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", default="trtspec-tiny")
    add("--drafts", nargs="*", default=[], help="as of trtspec-bench compare")
    add("--drafters", nargs="+", required=True, help="two or more methods, spelled as there")
    add("--dtype", default="auto")
    add("--workloads", nargs="*", default=list(WORKLOADS), choices=WORKLOADS)
    add("--num_prompts", type=int, default=4)
    add("--prompt_tokens", type=int, default=256)
    add("--max_tokens", type=int, default=96)
    add("--batch_size", type=int, default=1)
    add("--temperature", type=float, default=0.0)
    add("--rounds", type=int, default=5)
    add_synthetic_flag(parser)
    args = parser.parse_args(argv)

    alone = members(args)
    hybrid = merged(alone.values())
    configs = {**alone, HYBRID: hybrid, ADAPTIVE: replace(hybrid, adaptive=True)}
    options: dict[str, Any] = {"dtype": args.dtype, "max_batch_size": args.batch_size}
    folder = engine_maker(args)(args.model, hybrid, **options)
    options["kv_cache_config"] = {"enable_block_reuse": False}  # every round prefills anew
    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, seed=0, ignore_eos=True
    )
    print(f"tokens/s (speed-up; acceptance length), medians of {args.rounds} rounds", flush=True)
    for name in args.workloads:
        rivals = [Rival(BASELINE, open_llm(folder, False, **options))]
        rivals += [Rival(n, open_llm(folder, c, **options)) for n, c in configs.items()]
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
        longest = max(lengths[member] for member in alone)
        fastest = min(times[member] for member in alone)
        print(
            f"{name:8} all / the best one: {lengths[HYBRID] / longest:.3f} in "
            f"acceptance length; adaptive, {fastest / times[ADAPTIVE]:.3f} in tokens/s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
