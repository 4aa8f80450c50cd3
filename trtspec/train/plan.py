"""TrainingPlan: what a training will take, printed before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.builder.token_choice import DraftCost
from trtspec.config.build_config import BuildConfig
from trtspec.engine.memory import weight_bytes
from trtspec.engine.weight_formats import target_formats
from trtspec.errors import ConfigError
from trtspec.speculative.recipe import TrainingRecipe
from trtspec.speculative.registry import method_name, methods
from trtspec.train.data import DataSource
from trtspec.train.options import TrainOptions
from trtspec.train.target import TrainingTarget

_THROWN_AWAY = 1.3
"""Tokens written for each one that is kept: questions are written, then read again."""
_OPTIMIZER_COPIES = 3
_ELEMENT = 4


@dataclass(frozen=True)
class TrainingPlan:
    """Estimates. ``new_tokens``: still to be written by the target; ``tokens``: to train on per
    pass. ``vocabulary``: rows of the draft's head, at most. ``gflops``: what this machine reaches
    in a large product now, ``efficiency``: the share of it that training reaches."""

    options: TrainOptions
    recipe: TrainingRecipe
    target: TrainingTarget
    source: DataSource
    folder: Path
    tokens: int
    new_tokens: int
    vocabulary: int
    depth: int
    gflops: float
    efficiency: float

    def speculation(self, model: str) -> dict[str, Any]:
        """The options with which a head in that folder drafts as deep as it has learned to."""
        rows = methods()[method_name(self.options.method)].options.usual_rows
        found: dict[str, Any] = {"method": self.options.method, "model": model}
        found["num_speculative_tokens"] = self.depth
        return found if rows is None else {**found, "num_draft_tokens": rows}

    @property
    def head_weights(self) -> int:
        """Elements that are trained."""
        config = self.target.config
        own = self.vocabulary * config.hidden_size if self.recipe.cuts_vocabulary else 0
        return self.recipe.body_weights(config) + own

    @property
    def cost(self) -> DraftCost:
        """What passes of target and draft read."""
        config = self.target.config
        body = self.recipe.body_weights(config)
        return DraftCost(self._target_weights, body, config.hidden_size, self.depth)

    @property
    def _target_weights(self) -> int:
        floats = replace(self.target.config, storage=None)
        build = BuildConfig(dtype="bfloat16")
        return weight_bytes(floats, target_formats(floats, build), build) // 2

    @property
    def operations(self) -> float:
        """Operations per token of a pass: 6 for each weight and unrolled position, plus the
        teacher's logits."""
        config = self.target.config
        logits = self.vocabulary * config.hidden_size
        passes = (1 + self.depth) / 2 if self.recipe.depth_setting else 1
        return 6 * passes * (self.recipe.body_weights(config) + logits) + 2 * logits

    @property
    def writing_minutes(self) -> float:
        return self._minutes(self.new_tokens * _THROWN_AWAY * 2 * self._target_weights)

    @property
    def training_minutes(self) -> float:
        return self._minutes(self.tokens * self.options.passes * self.operations)

    @property
    def memory_bytes(self) -> int:
        """Memory of training itself: the target's embedding and head, the head with gradients and
        optimizer, and what a step keeps over the vocabulary."""
        config = self.target.config
        outside = config.vocab_size * config.hidden_size * (1 if config.head.tied else 2)
        trained = self.head_weights * (2 + _OPTIMIZER_COPIES)
        unrolled = self.depth if self.recipe.depth_setting else 1
        logits = self.options.step_tokens * self.vocabulary * (1 + 2 * unrolled)
        return _ELEMENT * (outside + trained + logits)

    @property
    def disk_bytes(self) -> int:
        """Disk space still needed: hidden states of new texts, two checkpoints, the head."""
        config = self.target.config
        states = len(self.recipe.recorded_layers(config))
        width = 2 if config.dtype != "float32" else _ELEMENT
        texts = self.new_tokens * states * config.hidden_size * width
        return texts + self.head_weights * (2 * _OPTIMIZER_COPIES * _ELEMENT + 2)

    def check(self) -> None:
        """Raise ConfigError if the disk has no room for it."""
        there = self.folder
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        if free < self.disk_bytes:
            raise ConfigError(
                f"the training needs {_gb(self.disk_bytes)} below {self.folder}, {_gb(free)} are "
                "free; make room, lower --tokens, or give another --state folder"
            )

    def describe(self) -> str:
        """The plan as text."""
        options, config = self.options, self.target.config
        own = self.recipe.cuts_vocabulary
        asked = self.options.draft_vocab_size is not None or not own
        rows = f"{self.vocabulary} of {config.vocab_size}"
        if not asked and self.vocabulary < config.vocab_size:
            rows = f"as few of {config.vocab_size} as the data needs (here {self.vocabulary})"
        lines = [
            f"target    {self.target.path} ({config.describe()})",
            f"draft     {options.method}: {self.head_weights / 1e6:.1f} M weights to train, drafts "
            f"of {self.depth}, proposes {rows} tokens, reads layers "
            f"{list(self.recipe.capture_layers(config))}",
            f"data      {self.source.description}",
            f"tokens    {self.tokens:,} in a pass ({self.new_tokens:,} still to be written), "
            f"{options.passes:g} passes",
            f"time      about {self.writing_minutes:.0f} min to write, {self.training_minutes:.0f} "
            f"min to train, at {self.gflops:.0f} GFLOP/s in a large product now "
            f"({self.operations / 1e6:.0f} MFLOP a token and pass)",
            f"memory    {_gb(self.memory_bytes)} to train, beside the engine's while it writes",
            f"disk      {_gb(self.disk_bytes)} below {self.folder}",
            f"output    {options.output}",
        ]
        return "\n".join(lines)

    def _minutes(self, operations: float) -> float:
        return operations / (self.gflops * 1e9 * self.efficiency) / 60


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"
