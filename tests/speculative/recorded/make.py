"""Records what drafters propose over a model's own text: `python -m tests.speculative.recorded.make
--questions <Spec-Bench question.jsonl> --head <EAGLE-3 head>` writes `smollm2.json`.

For the first questions of each category the target writes its text one token a step, and before
each step every drafter is asked (`trtspec.bench.doctor.agreement`). Kept are counts alone, no text:
of each position the nodes of a chain, how many of them came true, and how sure the drafter was.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.speculative.recorded.trace import PATH, Place
from trtspec.bench.dataset import BenchPrompt, encode_questions, read_questions
from trtspec.bench.doctor.agreement import matched_depth, watch_drafts
from trtspec.builder.locate import find_model
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import EngineConfig
from trtspec.llmapi.engines import build
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.ops.tree import TokenTree
from trtspec.speculative.options import parse_speculative_config

TEMPERATURES = (0.0, 1.0)
PER_CATEGORY, PROMPT_TOKENS, PLACES = 2, 512, 128
_MOST_TOKENS = PLACES + 17
"""So that no tree is cut for the end of its text."""
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 8},
    "suffix": {"method": "suffix"},
}
HEAD = "eagle3"
"""Of which a head was given, that is."""


def place_of(tree: TokenTree, text: Sequence[int]) -> Place:
    """What a chain said of the text behind it."""
    sureness = 0.5
    if tree.scores is not None and len(tree):
        # The mean of its nodes' own chances, as the scores are sums of their ln.
        sureness = float(np.exp(float(tree.scores.min()) / tree.max_depth))
    return Place(len(tree), matched_depth(tree, text), sureness)


def record(
    model: str, options: Mapping[str, Any], prompts: Sequence[BenchPrompt], temperature: float
) -> str:
    """The places of all texts, one behind the other."""
    config = parse_speculative_config(options)
    assert config is not None
    folder = build(model, config, max_batch_size=8)
    ends = EngineConfig.read(folder).target.eos_token_ids
    params = SamplingParams(
        max_tokens=_MOST_TOKENS, temperature=temperature, stop_token_ids=list(ends)
    )
    ids = [prompt.token_ids for prompt in prompts]
    places: list[list[Place]] = [[Place()] * PLACES for _ in ids]
    lengths = [0] * len(ids)
    for request, length, tree in watch_drafts(folder, config, ids, params):
        text = request.tokens[length:]
        lengths[request.id] = min(request.num_output_tokens - 1, PLACES)
        # The first token comes of the prompt; drafts begin behind it.
        place = length - request.num_prompt_tokens - 1
        if place < PLACES:
            places[request.id][place] = place_of(tree, text)
    return "".join(
        place.written()
        for length, each in zip(lengths, places, strict=True)
        for place in each[:length]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--head", type=Path)
    args = parser.parse_args()
    seen: dict[str | None, int] = {}
    chosen = []
    for question in read_questions(args.questions):
        seen[question.category] = seen.get(question.category, 0) + 1
        if seen[question.category] <= PER_CATEGORY:
            chosen.append(question)
    tokenizer = load_tokenizer(find_model(args.model))
    prompts = encode_questions(chosen, tokenizer, PROMPT_TOKENS)
    methods = dict(METHODS)
    if args.head is not None:
        methods[HEAD] = {"method": HEAD, "model": str(args.head), "num_speculative_tokens": 5}
    traces: dict[str, dict[str, str]] = {f"{t:g}": {} for t in TEMPERATURES}
    for name, options in methods.items():
        for temperature in TEMPERATURES:
            traces[f"{temperature:g}"][name] = record(args.model, options, prompts, temperature)
            print(f"{name} at temperature {temperature:g} is recorded")
        PATH.write_text(json.dumps({"model": args.model, "traces": traces}, indent=1) + "\n")


if __name__ == "__main__":
    main()
