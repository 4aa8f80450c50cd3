"""Prefix-aware routing beside random: how much of the prompts the replicas find in their caches.

    python -m trtspec.bench.replica_routing --model M [--replicas 2] [--output F]

Users come in groups with a system prompt in common, and each returns with its conversation, which
has grown, so a prompt repeats the one before and the beginning of its group's. Replicas run over
Ray on this machine; each policy gets new ones, whose caches are empty.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.report.result_file import check_output, make_result, save
from trtspec.config.sampling import SamplingParams
from trtspec.errors import TrtspecError
from trtspec.serve.engine_client import EngineClient, GenerateRequest
from trtspec.serve.engine_source import EngineSource
from trtspec.serve.replicas.balancer import POLICIES
from trtspec.serve.replicas.cluster import replica_opener
from trtspec.serve.replicas.settings import ReplicaSettings
from trtspec.serve.settings import ServeSettings

NAME = "python -m trtspec.bench.replica_routing"
PARAMS = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


def conversations(args: argparse.Namespace, vocab_size: int) -> list[list[list[int]]]:
    """The prompts of each conversation, one a turn: a group's tokens, then those of its turns."""
    dice = random.Random(args.seed)

    def tokens(count: int) -> list[int]:
        return [dice.randrange(1, vocab_size) for _ in range(count)]

    systems = [tokens(args.shared_tokens) for _ in range(args.groups)]
    found = []
    for number in range(args.conversations):
        grown = list(systems[number % args.groups])
        turns = []
        for _ in range(args.turns):
            grown = grown + tokens(args.turn_tokens)
            turns.append(grown)
        found.append(turns)
    dice.shuffle(found)
    return found


async def converse(engine: EngineClient, turns: Sequence[Sequence[int]]) -> None:
    for prompt in turns:
        async for _ in engine.generate(GenerateRequest((prompt,), PARAMS)):
            pass


async def measure(engine: EngineClient, args: argparse.Namespace) -> dict[str, Any]:
    """All conversations, so many at once as there are users."""
    room = asyncio.Semaphore(args.concurrency)

    async def one(turns: list[list[int]]) -> None:
        async with room:
            await converse(engine, turns)

    began = time.perf_counter()
    asked = conversations(args, engine.facts.vocab_size)
    await asyncio.gather(*map(one, asked))
    seconds = time.perf_counter() - began
    prompts = sum(len(prompt) for turns in asked for prompt in turns)
    figures = await engine.figures()
    while figures.num_prefix_cache_queries < prompts:  # replicas report now and then
        await asyncio.sleep(0.1)
        figures = await engine.figures()
    new = args.groups * args.shared_tokens + args.conversations * args.turns * args.turn_tokens
    return {
        "seconds": seconds,
        "prompt_tokens": prompts,
        "hit_rate": figures.num_prefix_cache_hits / prompts,
        "possible_hit_rate": 1 - new / prompts,  # of one cache without bounds
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", default="trtspec-tiny")
    add("--backend", default="auto")
    add("--replicas", type=int, default=2)
    add("--policies", nargs="*", default=list(POLICIES), choices=POLICIES)
    add("--groups", type=int, default=8, help="system prompts")
    add("--shared_tokens", type=int, default=256, help="of each")
    add("--conversations", type=int, default=64)
    add("--turns", type=int, default=3)
    add("--turn_tokens", type=int, default=48, help="by which a turn lengthens its prompt")
    add("--concurrency", type=int, default=16, help="conversations at once")
    add("--kv_cache_max_tokens", type=int, default=4096, help="of a replica's cache")
    add("--seed", type=int, default=0)
    add("--output", type=Path)
    args = parser.parse_args(argv)
    try:
        if args.output is not None:
            check_output(args.output)
        cache = {"max_tokens": args.kv_cache_max_tokens}
        options = {"backend": args.backend, "kv_cache_config": cache, "tokenizer": None}
        source = EngineSource(args.model, False, options)
        server = ServeSettings(model_names=(args.model,), port=0)
        rows = []
        for policy in args.policies:
            replicas = ReplicaSettings(num_replicas=args.replicas, routing_policy=policy)
            engine = replica_opener(replicas, server, source.open, 0)()
            try:
                row = {"method": policy, **asyncio.run(measure(engine, args))}
            finally:
                engine.close()
            print(json.dumps(row), flush=True)
            rows.append(row)
    except TrtspecError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    if args.output is not None:
        common = {"engine": "trtspec", "replicas": args.replicas, "concurrency": args.concurrency}
        body = {"common": common, "rows": rows}
        words = [*NAME.split()[1:], *(sys.argv[1:] if argv is None else argv)]
        save(args.output, make_result(NAME, 1, words, ["torch", "ray"], body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
