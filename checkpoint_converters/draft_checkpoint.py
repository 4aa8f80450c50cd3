"""DraftFolder and DraftCheckpoint: a draft's folder when opened, and when matched to a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from checkpoint_converters.auxiliary_weights import AuxiliaryWeights
from checkpoint_converters.checkpoint import config_files
from checkpoint_converters.containers.pickle_files import read_any_headers
from checkpoint_converters.containers.safetensors_files import LazyTensors, TensorHeader
from checkpoint_converters.containers.tensor_sources import HeldTensor, Merged, PickedRows
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.draft_names import normalise
from checkpoint_converters.draft_vocabulary import TOKEN_MAP, coverage, held_map
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.peft import PeftAdapter
from checkpoint_converters.quantised.folded import fold, storage_of
from checkpoint_converters.token_map import read_token_map
from trtspec.config.kv import CacheDtype
from trtspec.config.layer_tensors import EMBEDDING, HEAD, HEAD_BIAS
from trtspec.config.model import ModelConfig
from trtspec.config.storage import NetworkStorage
from trtspec.errors import CheckpointError

_NEVER = -1e30
"""Added to a logit: below any other, but finite, as weights must be."""


@dataclass(frozen=True)
class DraftFolder:
    """A draft's folder or GGUF file; tensors are read on demand.

    runs: the drafts that this version runs, for messages. auxiliary: what a language model's
    checkpoint may hold besides it.
    """

    path: Path
    hf: HfConfig
    runs: str
    auxiliary: Sequence[AuxiliaryWeights] = ()

    @classmethod
    def open(cls, path: Path, runs: str, auxiliary: Sequence[AuxiliaryWeights]) -> DraftFolder:
        """Open a draft's folder or GGUF file.

        Raises:
            CheckpointError: it is neither, or has no readable config.json.
        """
        if not path.exists():
            raise CheckpointError(
                f"{path} is not a folder, nor a GGUF file; a draft checkpoint is one"
            )
        return cls(path, HfConfig.read(path), runs, auxiliary)

    @cached_property
    def headers(self) -> dict[str, TensorHeader]:
        """Its tensors under their own names; quantised weights as floats."""
        return fold(self.hf, read_any_headers(self.path))

    @cached_property
    def tensors(self) -> dict[str, TensorHeader]:
        """Its tensors under common names."""
        return normalise(self.headers)

    def not_run(self, what: str) -> CheckpointError:
        """The error for a kind of draft that this version does not run."""
        return self.hf.refuse(f"{what}: this version does not run it yet; it runs {self.runs}")

    def refuse_token_map(self, what: str, token_map: Path | None) -> None:
        """Raise CheckpointError if a token map is given for a draft whose head cannot be cut."""
        if token_map is not None:
            raise CheckpointError(
                f"{self.path} holds {what}, whose head is not cut; leave the token map {token_map} "
                "out (vocabulary)"
            )


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft that fits its target.

    method: the speculative method that runs it. config: the shape of its network. ``tensors`` maps
    internal names to tensors read on demand; besides weights, ``token_map [V_d] i64`` is the
    target's id of each row of a head that has fewer rows than the target has tokens. ``notes`` are
    lines to print, the first about what the folder was recognised as; ``files`` are all files it
    consists of. ``doubts``: reasons to expect low acceptance, each with its remedy, to be shown to
    the user.
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
        """The kind of its network, such as ``"eagle"`` or ``"model"``."""
        kind: str = self.config.kind
        return kind

    @cached_property
    def storage(self) -> NetworkStorage | None:
        """How its weights are quantised; None for floats."""
        return storage_of(self.tensors.headers)

    def in_floats(self, head_alone: bool = False, bits: int = 0) -> DraftCheckpoint:
        """A copy with floats in place of quantised weights of linear layers with more than
        ``bits``, or of the head alone. Embeddings are kept: in a language model whose head is its
        embedding, the head becomes a separate tensor."""
        found = self if not isinstance(self.config, ModelConfig) else self._with_head()
        whole = found.tensors.headers
        kept = {n for n in whole if n.endswith(EMBEDDING)}
        if head_alone:
            kept = {n for n in whole if not n.endswith(HEAD)}
        kept |= {n for n, each in whole.items() if each.storage and each.storage.bits <= bits}
        return found._holding(found.config, found.tensors.in_floats(kept))

    def with_caches(self, dtype: CacheDtype | None) -> DraftCheckpoint:
        """A copy whose network stores K/V this way; see `DraftConfig.with_caches`."""
        return replace(self, config=self.config.with_caches(dtype))

    def cut_to(self, token_map: Path, target: ModelConfig) -> DraftCheckpoint:
        """A copy of a causal language model with the head's rows for the ids in a file.

        Raises:
            CheckpointError: the file is not a token map of tokens that both models have.
        """
        vocab = min(self.config.vocab_size, target.vocab_size)
        ids = read_token_map(token_map, vocab)
        notes = (*self.notes, coverage(ids, target, str(token_map)))
        if len(ids) == self.config.vocab_size:
            return replace(self, notes=notes, files=(*self.files, token_map))
        found = self._with_head()
        head = replace(found.config.head, rows=len(ids))
        tensors = dict(found.tensors.headers)
        tensors[HEAD] = PickedRows.of(tensors[HEAD], ids)
        tensors[TOKEN_MAP] = held_map(ids, token_map)
        found = found._holding(replace(found.config, head=head), LazyTensors(tensors))
        return replace(found, notes=notes, files=(*self.files, token_map))

    def merged(self, adapter: PeftAdapter) -> DraftCheckpoint:
        """Itself, a causal language model, with an adapter of it merged into its weights.

        Raises:
            CheckpointError: one of these is quantised.
        """
        tensors = dict(self.tensors.headers)
        for layer, (a, b) in adapter.layers.items():
            header = tensors[f"{layer}.weight"]
            if header.storage is not None:
                raise CheckpointError(
                    f"{header.file}: tensor {header.name} is quantised, and {adapter.path} cannot "
                    "be merged into it; give a checkpoint of floats, or leave adapter out"
                )
            tensors[f"{layer}.weight"] = Merged.of(header, a, b)
        notes = (*self.notes, f"the adapter in {adapter.path} is merged into it")
        files = (*self.files, *adapter.files)
        return replace(self, tensors=LazyTensors(tensors), notes=notes, files=files)

    def _with_head(self) -> DraftCheckpoint:
        """A copy of a causal language model whose head is a separate tensor."""
        config, tensors = self.config, dict(self.tensors.headers)
        if not config.head.tied:
            return self
        tensors[HEAD] = tensors[EMBEDDING]
        untied = replace(config, head=replace(config.head, tied=False))
        return self._holding(untied, LazyTensors(tensors))

    def _holding(self, config: Any, tensors: LazyTensors) -> DraftCheckpoint:
        """A copy with these tensors, and the storage in a language model's config updated."""
        found = replace(self, config=config, tensors=tensors)
        if not isinstance(config, ModelConfig):
            return found
        return replace(found, config=replace(config, storage=found.storage))

    def without(self, tokens: Sequence[int]) -> DraftCheckpoint:
        """A copy of a causal language model with a bias that keeps it from drafting these tokens.
        None is needed if its head has been cut to others."""
        config = self.config
        bias = torch.zeros(config.vocab_size)
        bias[torch.tensor(tokens)] = _NEVER
        if config.maps_tokens:
            bias = bias[self.tensors.headers[TOKEN_MAP].read()]
            if not bias.any():
                return self
        header = HeldTensor(HEAD_BIAS, self.files[0], "F32", tuple(bias.shape), bias)
        headers = {**self.tensors.headers, HEAD_BIAS: header}
        head = replace(config.head, bias=True)
        return replace(self, config=replace(config, head=head), tensors=LazyTensors(headers))

    @property
    def content(self) -> list[Path]:
        """The files that identify it: configs, weight files and token map."""
        return config_files(self.path) + list(self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Hash (32 hex digits) of its content; for a causal language model that of
        `checkpoint_converters.fingerprint`. Reads everything once."""
        return hash_files(self.content)
