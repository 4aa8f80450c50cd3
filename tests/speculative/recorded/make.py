"""Records what drafters propose over a model's own text:

    python -m tests.speculative.recorded.make NAME --model M --methods METHODS.json
        (--questions <Spec-Bench question.jsonl> | --prompts PROMPTS.json)

writes the traces of `NAME.json`. METHODS.json holds a speculative config by a drafter's name,
PROMPTS.json what users say by kind, `{"chat": ["...", ...], ...}`.

The target writes its text one token a step, and before each step a drafter is asked
(`trtspec.bench.doctor.agreement`), prompt by prompt, as one request is served. Kept are counts and
chances alone, no text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.speculative.recorded.trace import FOLDER, Place, written
from trtspec.bench.data.dataset import encode_questions, read_questions
from trtspec.bench.doctor.agreement import matched_depth, watch_drafts
from trtspec.builder.locate import find_model
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import EngineConfig
from trtspec.llmapi.engines import build
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.ops.tree import TokenTree
from trtspec.speculative.options import parse_speculative_config

TEMPERATURES = (0.0, 1.0)
PER_CATEGORY, PROMPT_TOKENS = 2, 512


def place_of(tree: TokenTree, text: Sequence[int]) -> Place:
    """What a chain said of the text behind it."""
    # Scores are sums of the ln of the nodes' own chances.
    chances = np.exp(np.diff(tree.scores.astype(np.float64), prepend=0.0))
    return Place(matched_depth(tree, text), tuple(np.clip(chances, 0.0, 1.0).tolist()))


def record(
    model: str,
    options: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    temperature: float,
    places: int,
) -> list[str]:
    """The places of each text."""
    config = parse_speculative_config(options)
    assert config is not None
    folder = build(model, config, max_batch_size=1, max_seq_len=2048)
    ends = EngineConfig.read(folder).target.eos_token_ids
    # So many more that no tree is cut for the end of its text.
    params = SamplingParams(
        max_tokens=places + 17, temperature=temperature, stop_token_ids=list(ends)
    )
    found: list[list[Place]] = [[] for _ in prompts]
    for request, length, tree in watch_drafts(folder, config, prompts, params):
        # The first token comes of the prompt; drafts begin behind it.
        if len(found[request.id]) < min(request.num_output_tokens - 1, places):
            found[request.id].append(place_of(tree, request.tokens[length:]))
    return [written(each) for each in found]


def prompts_of(args: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Token ids by kind."""
    tokenizer = load_tokenizer(find_model(args.model))
    if args.prompts:
        said = json.loads(args.prompts.read_text())
        return {
            kind: [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}],
                    add_generation_prompt=True,
                    return_dict=False,
                )
                for text in texts
            ]
            for kind, texts in said.items()
        }
    seen: dict[str | None, int] = {}
    chosen = []
    for question in read_questions(args.questions):
        seen[question.category] = seen.get(question.category, 0) + 1
        if seen[question.category] <= PER_CATEGORY:
            chosen.append(question)
    encoded = encode_questions(chosen, tokenizer, PROMPT_TOKENS)
    return {"questions": [prompt.token_ids for prompt in encoded]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--model", required=True)
    parser.add_argument("--methods", type=Path, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--questions", type=Path)
    source.add_argument("--prompts", type=Path)
    parser.add_argument("--places", type=int, default=128, help="of a text")
    args = parser.parse_args()
    path = FOLDER / f"{args.name}.json"
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    traces = {f"{t:g}": {} for t in TEMPERATURES}
    prompts = prompts_of(args)
    for drafter, options in json.loads(args.methods.read_text()).items():
        for temperature in TEMPERATURES:
            for kind, ids in prompts.items():
                lines = record(args.model, options, ids, temperature, args.places)
                known = traces[f"{temperature:g}"].setdefault(
                    kind, [{"prompt": len(each), "drafts": {}} for each in ids]
                )
                for text, line in zip(known, lines, strict=True):
                    text["drafts"][drafter] = line
                print(f"{drafter}, temperature {temperature:g}, {kind}", flush=True)
            path.write_text(json.dumps({**data, "traces": traces}, indent=1) + "\n")


if __name__ == "__main__":
    main()
