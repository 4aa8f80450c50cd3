"""TrainingTarget: what training needs of a target besides its recorded hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from trtspec.builder.checkpoints import load_target
from trtspec.builder.locate import find_model
from trtspec.builder.tokenizer import tokenizer_folder
from trtspec.config.model import ModelConfig
from trtspec.engine.folder import is_engine_folder
from trtspec.errors import ConfigError
from trtspec.formats.stored import read_tensor


@dataclass(frozen=True)
class TrainingTarget:
    """Config and the weights outside the layers, float32: ``embedding [V, H]``, ``head [V, H]``
    (the embedding itself if they are tied) and ``norm [H]``, the final one. ``fingerprint``: hash
    of the checkpoint. ``tokenizer``: location of the tokenizer that it is used with, which names
    some of its end tokens."""

    path: Path
    config: ModelConfig
    embedding: Tensor
    head: Tensor
    norm: Tensor
    fingerprint: str
    tokenizer: Path

    @classmethod
    def open(cls, model: str | Path, tokenizer: str | None = None) -> TrainingTarget:
        """Open a checkpoint, and a tokenizer other than its own, as `LLM` takes them.

        Raises:
            CheckpointError: it cannot be read.
            ConfigError: it is an engine folder, or its kind of head is not supported in training.
        """
        path = find_model(model)
        if is_engine_folder(path):
            raise ConfigError(
                f"{path} is an engine folder, which holds packed weights; give the checkpoint that "
                "it was built from"
            )
        spoken = path if tokenizer is None else tokenizer_folder(tokenizer)
        found = load_target(path, spoken)
        config, tensors = found.config, found.tensors
        if config.norm.kind != "rms" or config.norm.one_plus or config.head.bias:
            raise ConfigError(
                f"{path}: drafts are trained for targets with a plain RMS norm before a head "
                f"without a bias; this one has {config.norm} and {config.head}"
            )
        embedding = read_tensor(tensors, "embed.weight").float()
        head = embedding if config.head.tied else read_tensor(tensors, "head.weight").float()
        norm = read_tensor(tensors, "norm.weight").float()
        return cls(path, config, embedding, head, norm, found.fingerprint, spoken)

    @cached_property
    def name(self) -> str:
        return self.path.stem if self.path.is_file() else self.path.name
