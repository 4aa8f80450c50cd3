"""Data sets of token ids for trtspec_benchmark, in the form of TensorRT-LLM's prepare_dataset:
``{"metadata": {...}, "samples": [{"input_ids": [...], "output_len": N, "task_id": -1}, ...]}``, or
for a ``.jsonl`` one such sample a line."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.bench.data.dataset import BenchPrompt
from trtspec.errors import ConfigError

NO_TASK = -1
"""The ``task_id`` of a sample without its own adapter."""


@dataclass(frozen=True)
class Sample:
    """A prompt as token ids, and how many tokens to generate."""

    input_ids: Sequence[int]
    output_len: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "input_ids": list(self.input_ids),
            "output_len": self.output_len,
            "task_id": NO_TASK,
        }


@dataclass(frozen=True)
class NormalLengths:
    """Lengths in tokens from a normal distribution, rounded, at least 1."""

    mean: float
    stdev: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean >= 1):
            raise ConfigError(f"the mean of lengths is {self.mean}; it must be at least 1 token")
        if not (math.isfinite(self.stdev) and self.stdev >= 0):
            raise ConfigError(f"the deviation of lengths is {self.stdev}; it must not be negative")

    def draw(self, source: random.Random) -> int:
        return max(1, round(source.gauss(self.mean, self.stdev)))


@dataclass(frozen=True)
class UniformLengths:
    """Lengths in tokens between two bounds, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ConfigError(
                f"lengths from {self.low} to {self.high} tokens must rise from at least 1"
            )

    def draw(self, source: random.Random) -> int:
        return source.randint(self.low, self.high)


Lengths = NormalLengths | UniformLengths


def text_samples(prompts: Sequence[BenchPrompt], output_len: int) -> list[Sample]:
    """The prompts as samples; ConfigError for one without a token."""
    for prompt in prompts:
        if not prompt.token_ids:
            raise ConfigError(f"prompt {prompt.question.id} has no token; leave it out")
    return [Sample(prompt.token_ids, output_len) for prompt in prompts]


def random_samples(
    count: int,
    inputs: Lengths,
    outputs: Lengths,
    vocab_size: int,
    excluded: Collection[int] = (),
    seed: int = 0,
) -> list[Sample]:
    """``count`` prompts of random tokens below ``vocab_size``, none of them ``excluded``;
    reproducible by seed."""
    source = random.Random(seed)
    barred = set(excluded)
    tokens = [token for token in range(vocab_size) if token not in barred]
    if not tokens:
        raise ConfigError(f"all of the {vocab_size} tokens are special; there are none to draw")
    samples = []
    for _ in range(count):
        length = inputs.draw(source)
        samples.append(Sample(source.choices(tokens, k=length), outputs.draw(source)))
    return samples


def write_dataset(path: Path, samples: Sequence[Sample], metadata: Mapping[str, Any]) -> None:
    """Write the samples, preceded by the lengths and ``metadata``, except in a .jsonl.

    Raises:
        ConfigError: there is no sample, or the file cannot be written.
    """
    if not samples:
        raise ConfigError("there is no sample to write")
    entries = [sample.to_dict() for sample in samples]
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
    else:
        facts = {
            **metadata,
            "num_samples": len(samples),
            "max_input_len": max(len(sample.input_ids) for sample in samples),
            "max_output_len": max(sample.output_len for sample in samples),
        }
        text = json.dumps({"metadata": facts, "samples": entries}) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
