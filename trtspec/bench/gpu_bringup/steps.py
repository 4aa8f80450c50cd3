"""Parts ``chains`` and ``trees``: steps of every method by batch, temperature and context, and what
they consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from zlib import crc32

from trtspec.bench.gpu_bringup.engines import CHAINS, TREES, Family, Opened, Scale
from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.gpu_bringup.step_profile import profiled
from trtspec.bench.runs.rival import Rival
from trtspec.config.sampling import SamplingParams
from trtspec.llmapi.llm import LLM

_PROMPT = "def main(argv):\n    "
_FEW = 8
"""The largest batch that is measured at temperature 1, with long prompts and with the profiler."""
_POINT = ("batch", "temperature", "context")
_COMPARED = 16
"""Tokens in the fingerprint of a text: in 16 bits texts diverge sooner or later."""


def cases(family: Family, place: Place) -> Iterable[Case]:
    scale, opened = Scale.of(place), Opened(place, family)
    few = [batch for batch in scale.batches if batch <= _FEW]
    for method in family.methods[: scale.methods]:
        points = [(batch, 0.0, 0) for batch in scale.batches]
        points += [(batch, *more) for more in ((1.0, 0), (0.0, scale.context)) for batch in few]
        for point in points:
            key = {"method": method, **dict(zip(_POINT, point, strict=True))}
            yield Case(key, partial(step, scale, opened, method, *point))
        for batch in few:
            key = {"what a step consists of": method, "batch": batch}
            yield Case(key, partial(profile, scale, opened, method, batch))


chains, trees = partial(cases, CHAINS), partial(cases, TREES)


def step(
    scale: Scale,
    opened: Callable[[str], LLM],
    method: str,
    batch: int,
    temperature: float,
    context: int,
) -> Mapping[str, Any]:
    """A generation of that many requests, after a warm-up; ms are of a mean step. ``opened``: the
    model for a method."""
    llm = opened(method)
    rival, prompts = Rival(method, llm), prompts_of(llm, batch, context)
    params = SamplingParams(scale.tokens, temperature=temperature, seed=7, ignore_eos=True)
    rival.run(prompts, params)
    before = llm.get_metrics()
    rival.run(prompts, params)
    after = llm.get_metrics()
    grown = {key: after[key] - before[key] for key in after if isinstance(after[key], int | float)}
    count = max(grown["num_verify_steps"], 1)
    text = str([tokens[:_COMPARED] for tokens in rival.tokens])
    return {
        "tokens/s": batch * scale.tokens / rival.seconds[-1],
        "acceptance length": grown["num_emitted_tokens"] / max(grown["num_steps"], 1),
        "step ms": grown["verify_ms"] / count,
        "target ms": grown["verify_target_ms"] / count,
        "draft ms": grown["verify_draft_ms"] / count,
        "host ms": grown["verify_host_ms"] / count,
        "text": f"{crc32(text.encode()):08x}",
    }


def profile(
    scale: Scale, opened: Callable[[str], LLM], method: str, batch: int
) -> Mapping[str, Any]:
    """Of the steps of half a generation, 12 to 48; see `profiled`."""
    llm = opened(method)
    params = SamplingParams(scale.tokens // 2, ignore_eos=True)

    def run() -> int:
        before = llm.get_metrics()["num_engine_steps"]
        llm.generate(prompts_of(llm, batch, 0), params, use_tqdm=False)
        return int(llm.get_metrics()["num_engine_steps"] - before)

    return profiled(run)


def prompts_of(llm: LLM, batch: int, context: int) -> list[list[int]]:
    """Prompts of ``context`` tokens, or short ones, with distinct beginnings: the K/V of a common
    prefix would be shared."""
    tokens = llm.tokenizer.encode(_PROMPT)
    longer = (tokens * (context // len(tokens) + 1))[:context] or tokens
    return [[100 + i, *longer[1:]] for i in range(batch)]
