"""How far a model with weights of few bits is from the same weights in float32, over a text.

    python -m trtspec.bench.weight_accuracy --model smollm2-135m --text FILE [--tokens N]

Prints for each way to keep and multiply the weights the mean KL divergence of the next token's
probabilities, in nats, and how often the most probable token stays.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.checkpoints import load_target
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.builder.tokenizer import read_tokenizer
from trtspec.config.build_config import BuildConfig
from trtspec.engine.graphs import target_module

WINDOW = 512
"""Tokens that are read together, each seeing those before it."""
_FLOATS = "float32"
WAYS: Mapping[str, BuildConfig] = {
    "as stored, float32": BuildConfig(_FLOATS),
    "as stored, float32, inputs not rounded": BuildConfig(_FLOATS, activation_dtype=_FLOATS),
    "as stored, bfloat16": BuildConfig("bfloat16"),
    "as stored, bfloat16, inputs not rounded": BuildConfig("bfloat16", activation_dtype="bfloat16"),
    "floats of them, bfloat16": BuildConfig("bfloat16", weight_dtype="bfloat16"),
}


@dataclass(frozen=True)
class Distance:
    """From the reference: mean KL divergence in nats, and the share of equal first choices."""

    divergence: float
    agreement: float


def distances(
    model: Path, ids: Sequence[int], ways: Mapping[str, BuildConfig]
) -> dict[str, Distance]:
    """By the names of the ways; over ``ids``, in windows."""
    windows = torch.split(torch.tensor(list(ids)), WINDOW)
    reference = BuildConfig(_FLOATS, weight_dtype=_FLOATS)
    exact = [each.float() for each in _seen(model, reference, windows)]
    found = {}
    for name, build in ways.items():
        divergence = agreed = 0.0
        for theirs, ours in zip(exact, _seen(model, build, windows), strict=True):
            wide = theirs.double()
            divergence += float((wide.exp() * (wide - ours)).sum())
            agreed += int((wide.argmax(-1) == ours.argmax(-1)).sum())
        found[name] = Distance(divergence / len(ids), agreed / len(ids))
    return found


def _seen(model: Path, build: BuildConfig, windows: Sequence[Tensor]) -> list[Tensor]:
    engine = plan_build(model, build, skip_tokenizer_init=True).engine
    target, checkpoint = target_module(engine), load_target(model)
    target.load_weights(replace(checkpoint, config=engine.target))
    return [log_probabilities(target, window).float() for window in windows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounded weights beside float32, over a text.")
    parser.add_argument("--model", required=True, help="folder, GGUF file or embedded name")
    parser.add_argument("--text", type=Path, required=True, help="file of plain text")
    parser.add_argument("--tokens", type=int, default=9 * WINDOW, help="its first tokens")
    arguments = parser.parse_args()
    model = Path(find_model(arguments.model))
    ids = read_tokenizer(model)(arguments.text.read_text())["input_ids"][: arguments.tokens]
    print(f"{model.name}, {len(ids)} tokens in windows of {WINDOW}")
    for name, each in distances(model, ids, WAYS).items():
        print(f"{name:44} KL {each.divergence:.2e}, same first choice {each.agreement:.2%}")


if __name__ == "__main__":
    main()
