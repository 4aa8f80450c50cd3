"""Times suffix trees: taking in a token, and drafting, behind a long history.

    python -m trtspec.bench.suffix [--tokens N] [--depths D ...] [--steps N]

Texts: Python's standard library, token by token as the embedded model reads it; one of uniformly
random tokens; one that repeats its last 200 tokens with a change in 20; and one with a period of 7.
Times are the CPU's, so that other work on the machine does not count, and include the call from
Python, which an empty query shows alone. Queries search the tree of the text and a global one that
holds the text as well; `drafted` says how many tokens they gave.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from trtspec.bench.corpus import standard_library
from trtspec.speculative.suffix.trees import SuffixCache, SuffixOptions

TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "trtspec-tiny" / "tokenizer.json"


def library_text(count: int) -> list[int]:
    """The first `count` tokens of the held-out part of the standard library."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    text: list[int] = []
    for file in standard_library()[1]:
        text.extend(tokenizer.encode(file).ids)
        if len(text) >= count:
            break
    return text[:count]


def repeating_text(count: int, period: int, change: float, vocab: int) -> list[int]:
    """Each token is the one `period` before, but for a share of `change` (all of them: 1)."""
    chance = random.Random(0)
    text: list[int] = []
    for i in range(count):
        same = i >= period and chance.random() >= change
        text.append(text[i - period] if same else chance.randrange(vocab))
    return text


def mean_and_tail(times: Sequence[float]) -> str:
    """The mean, and what one call in a hundred exceeds."""
    tail = sorted(times)[len(times) * 99 // 100]
    return f"{sum(times) / len(times) * 1e6:5.2f} us (99 %: {tail * 1e6:5.1f})"


def bench(name: str, text: Sequence[int], depth: int, steps: int) -> None:
    """All but the last `steps` tokens in one call, then token by token with a query each."""
    history = list(text[:-steps])
    cache = SuffixCache(depth, -1, 1 << 40)
    cache.start(0)
    begin = time.thread_time()
    cache.append_prompt(0, history)
    bulk = (time.thread_time() - begin) / len(history)
    weight = cache.sizes.memory_bytes / len(history)
    # A second request says the same and so fills the global tree, in which all others search.
    cache.start(1)
    cache.append_response(1, history)

    append, drafted = 0.0, 0
    times: dict[bool, list[float]] = {False: [], True: []}
    for token in text[-steps:]:
        begin = time.thread_time()
        cache.append_response(0, [token])
        append += time.thread_time() - begin
        for tree in (False, True):
            options = SuffixOptions(tree=tree)
            begin = time.thread_time()
            draft = cache.speculate([0], [depth], options)[0]
            times[tree].append(time.thread_time() - begin)
        drafted += len(draft.tokens)
    print(
        f"{name:18} depth {depth:3}: append {bulk * 1e6:5.2f} us a token, {weight:4.0f} bytes;"
        f" a step's append {append / steps * 1e6:5.2f} us;"
        f" query path {mean_and_tail(times[False])}, tree {mean_and_tail(times[True])};"
        f" drafted {drafted / steps:4.1f}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--depths", type=int, nargs="*", default=[24, 64])
    parser.add_argument("--steps", type=int, default=5_000, help="queries of each text")
    args = parser.parse_args(argv)
    count = args.tokens + args.steps
    texts = {
        "standard library": library_text(count),
        "random of 1000": repeating_text(count, 1, 1.0, 1000),
        "random of 4": repeating_text(count, 1, 1.0, 4),
        "repeats 200": repeating_text(count, 200, 0.05, 1000),
        "period 7": repeating_text(count, 7, 0.0, 1000),
    }
    gc.disable()  # nothing here makes cycles
    cache = SuffixCache(2, 0, 0)
    cache.start(0)
    begin = time.thread_time()
    for _ in range(args.steps):
        cache.speculate([0], [0], SuffixOptions())
    print(f"an empty query: {(time.thread_time() - begin) / args.steps * 1e6:.2f} us")
    for depth in args.depths:
        for name, text in texts.items():
            bench(name, text, depth, args.steps)


if __name__ == "__main__":
    main()
