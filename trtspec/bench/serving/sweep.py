"""A whole measurement: warm-up, then every point of a load between two looks at the counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from trtspec.bench.serving.client import ServeClient
from trtspec.bench.serving.counters import read_counters
from trtspec.bench.serving.load import LoadTest
from trtspec.bench.serving.prompts import PromptSets, random_prompts
from trtspec.bench.serving.result import point_result
from trtspec.bench.serving.run import run_point, warm_up
from trtspec.log import logger

_WARM_UP_SEED = 0x77A6


async def measure(
    client: ServeClient,
    load: LoadTest,
    prompts: PromptSets,
    model: str,
    num_warmup: int,
    on_point: Callable[[dict[str, Any]], None],
    shows_progress: bool = True,
) -> bool:
    """Measure every point, one after the other; False if an interruption ended it.

    ``on_point`` gets each point's result as soon as there is one, an interrupted one too. Warm-up
    requests ask random words, so that they leave no prefix of a measured prompt behind.
    """
    try:
        if num_warmup:
            logger.info("warm-up: %d requests", num_warmup)
            words = random_prompts(num_warmup, load.prompt_chars, _WARM_UP_SEED + load.seed)
            most = load.points[0].max_concurrency
            failures = await warm_up(client, load, model, words, most)
            if failures:
                logger.warning(
                    "%d of %d warm-up requests failed: %s", len(failures), num_warmup, failures[0]
                )
        for point, texts in zip(load.points, prompts.sets, strict=True):
            before = read_counters(await client.metrics())
            with tqdm(
                total=len(texts), desc=point.name, unit="req", disable=not shows_progress
            ) as bar:
                run = await run_point(client, load, point, model, texts, bar.update)
            is_cut, after = run.is_interrupted, None
            try:
                after = read_counters(await client.metrics()) if before else None
            except asyncio.CancelledError:
                is_cut = True  # what was measured is kept all the same
            on_point(point_result(point, texts, run, before, after))
            if is_cut:
                return False
    except asyncio.CancelledError:
        return False
    return True
