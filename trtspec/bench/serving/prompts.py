"""The prompts of a load, as text: no tokenizer is at hand, and the server's own is what counts."""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.bench.corpus import standard_library
from trtspec.bench.dataset import STDLIB, read_questions, spread
from trtspec.errors import ConfigError

RANDOM = "random"


@dataclass(frozen=True)
class PromptSets:
    """A list of prompts for every point of a load; `notes` say what a reader of results must know
    about them."""

    sets: list[list[str]]
    notes: tuple[str, ...] = ()


def choose_prompts(
    dataset: str, num_prompts: int, points: int, chars: int, seed: int
) -> PromptSets:
    """Prompts for `points` measurements of `num_prompts` requests each.

    Every point gets prompts of its own where there are enough: asked again, a prompt may be found
    in the server's prefix cache. ``dataset``: a file as `read_questions` takes it (the same even
    spread over its categories for every point), `stdlib`: pieces of held-out source code of
    ``chars`` characters, or `random`: words without a meaning, about as long.

    Raises:
        ConfigError: the file cannot be read.
    """
    wanted = num_prompts * points
    if dataset == RANDOM:
        texts = random_prompts(wanted, chars, seed)
    elif dataset == STDLIB:
        texts = code_prompts(wanted, chars)
    else:
        questions = read_questions(Path(dataset))
        texts = [q.text for q in spread(questions, wanted)]
        if len(texts) < wanted:
            texts = [q.text for q in spread(questions, num_prompts)]
    if len(texts) >= wanted:
        return PromptSets([texts[point::points] for point in range(points)])
    notes = []
    if len(texts) < num_prompts:
        notes.append(
            f"{dataset} has {len(texts)} prompts for {num_prompts} requests: they are repeated"
        )
    if points > 1:
        notes.append("every point asks the same prompts")
    notes.append("a server that shares prefixes answers a prompt quicker when asked again")
    chosen = [texts[i % len(texts)] for i in range(num_prompts)]
    return PromptSets([chosen] * points, ("; ".join(notes),))


def random_prompts(count: int, chars: int, seed: int) -> list[str]:
    """Made-up lower-case words, cut at ``chars`` characters; the same for the same seed."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        words: list[str] = []
        length = -1
        while length < chars:
            words.append("".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 8))))
            length += len(words[-1]) + 1
        texts.append(" ".join(words)[:chars])
    return texts


def code_prompts(count: int, chars: int) -> list[str]:
    """Up to ``count`` pieces of held-out standard library files: the first pieces of all files that
    are long enough, then the second ones, and so on."""
    files = [text for text in standard_library()[1] if len(text) >= chars]
    if not files:
        raise ConfigError(f"no file of {STDLIB} has {chars} characters; ask for shorter prompts")
    pieces: list[str] = []
    for start in range(0, max(map(len, files)) - chars + 1, chars):
        cut = (text[start : start + chars] for text in files if len(text) >= start + chars)
        pieces += [piece for piece in cut if piece.strip()]
        if len(pieces) >= count:
            break
    return pieces[:count]


def fingerprint(prompts: Sequence[str]) -> str:
    """SHA-256 of the prompts in their order."""
    return hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()
