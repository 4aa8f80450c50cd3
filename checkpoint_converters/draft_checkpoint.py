"""DraftFolder and DraftCheckpoint: a draft's folder as it is opened, and as it fits a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from checkpoint_converters.checkpoint import config_files
from checkpoint_converters.containers.pickle_files import read_any_headers
from checkpoint_converters.containers.safetensors_files import LazyTensors, TensorHeader
from checkpoint_converters.containers.tensor_sources import HeldTensor
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.draft_names import normalise
from checkpoint_converters.guest import Guest
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.quantised.folded import fold, storage_of
from trtspec.config.layer_tensors import HEAD_BIAS
from trtspec.config.storage import NetworkStorage
from trtspec.errors import CheckpointError

_NEVER = -1e30
"""Added to a logit: less than any other, and a finite number, as weights have to be."""


@dataclass(frozen=True)
class DraftFolder:
    """A draft's folder, or GGUF file; its tensors are looked at when they are asked for.

    runs: what drafts this version runs, for messages. guests: what a language model's checkpoint
    may hold besides it.
    """

    path: Path
    hf: HfConfig
    runs: str
    guests: Sequence[Guest] = ()

    @classmethod
    def open(cls, path: Path, runs: str, guests: Sequence[Guest]) -> DraftFolder:
        """Raises:
        CheckpointError: it is no folder and no GGUF file, or has no readable config.json.
        """
        if not path.exists():
            raise CheckpointError(
                f"{path} is not a folder, nor a GGUF file; a draft checkpoint is one"
            )
        return cls(path, HfConfig.read(path), runs, guests)

    @cached_property
    def headers(self) -> dict[str, TensorHeader]:
        """Its tensors, by their own names; quantised weights as floats."""
        return fold(self.hf, read_any_headers(self.path))

    @cached_property
    def tensors(self) -> dict[str, TensorHeader]:
        """Its tensors, by common names."""
        return normalise(self.headers)

    def not_run(self, what: str) -> CheckpointError:
        """The error for a kind of draft that this version does not run."""
        return self.hf.refuse(f"{what}: this version does not run it yet; it runs {self.runs}")

    def refuse_token_map(self, what: str, token_map: Path | None) -> None:
        """CheckpointError if a token map is given for a draft whose head cannot be cut."""
        if token_map is not None:
            raise CheckpointError(
                f"{self.path} holds {what}; the token map {token_map} is for EAGLE drafts only"
            )


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft that fits its target.

    method: the speculative method that runs it. config: the shape of its network. ``tensors`` maps
    internal names to tensors, each read when asked for; besides weights, ``token_map [V_d] i64`` is
    the target's id of each row of a head with fewer rows than the target has tokens. ``notes`` are
    lines to print, the first of them the decision what the folder holds; ``files`` are all it is
    made of. ``doubts``: what makes it likely that drafts are accepted seldom, each with its remedy;
    they are to be shown to whoever uses it.
    """

    path: Path
    method: str
    config: Any
    tensors: LazyTensors
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]
    doubts: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Of its network, such as ``"eagle"`` or ``"model"``."""
        kind: str = self.config.kind
        return kind

    @cached_property
    def storage(self) -> NetworkStorage | None:
        """How its weights are quantised; None: they are floats."""
        return storage_of({name: self.tensors.header(name) for name in self.tensors})

    def in_floats(self) -> DraftCheckpoint:
        """Itself, of a causal language model, with floats in place of quantised weights."""
        config = replace(self.config, storage=None)
        return replace(self, config=config, tensors=self.tensors.in_floats())

    def without(self, tokens: Sequence[int]) -> DraftCheckpoint:
        """Itself, of a causal language model, with a bias by which it never drafts these tokens."""
        config = self.config
        bias = torch.zeros(config.vocab_size)
        bias[torch.tensor(tokens)] = _NEVER
        header = HeldTensor(HEAD_BIAS, self.files[0], "F32", tuple(bias.shape), bias)
        headers = {**self.tensors.headers, HEAD_BIAS: header}
        head = replace(config.head, bias=True)
        return replace(self, config=replace(config, head=head), tensors=LazyTensors(headers))

    @property
    def content(self) -> list[Path]:
        """The files by which it is known: configs, weight files and token map."""
        return config_files(self.path) + list(self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Hash (32 hex digits) of its content; for a causal language model that of
        `checkpoint_converters.fingerprint`. Reads all of it, once."""
        return hash_files(self.content)
