"""Draft checkpoints: EAGLE networks, Medusa heads and causal language models, in every format."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from checkpoint_converters.checkpoint import load_checkpoint
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.draft_kind import detect, refuse_other_kinds
from checkpoint_converters.eagle_fields import read_eagle
from checkpoint_converters.eagle_names import D2T, IGNORED, T2D, expected, normalise
from checkpoint_converters.hf_config import CONFIG, GENERATION_CONFIG, HfConfig
from checkpoint_converters.medusa import (
    MedusaReading,
    describe_medusa,
    is_medusa,
    read_head_headers,
    read_medusa,
)
from checkpoint_converters.names import match
from checkpoint_converters.safetensors_files import LazyTensors, TensorHeader, weight_files
from checkpoint_converters.tensor_sources import HeldTensor, PickedRows
from checkpoint_converters.token_map import is_identity, read_d2t, read_token_map
from trtspec.config.draft import DraftConfig
from trtspec.config.eagle import EagleConfig
from trtspec.config.medusa import MedusaConfig
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

TOKEN_MAP = "token_map"

Eagle = TypeVar("Eagle", bound=EagleConfig)


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft that fits its target: an `EagleCheckpoint`, a `MedusaCheckpoint` or a `DraftModel`.

    ``tensors`` maps internal names to tensors, each read when asked for; ``notes`` are lines to
    print, the first of them the decision what the folder holds; ``files`` are all it is made of.
    """

    path: Path
    config: DraftConfig
    tensors: LazyTensors
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def kind(self) -> str:
        """``"eagle"``, ``"medusa"`` or ``"model"``."""
        return self.config.kind

    @cached_property
    def fingerprint(self) -> str:
        """Hash (32 hex digits) of config, weight files and token map; for a causal language model
        that of `checkpoint_converters.fingerprint`. Reads all of them, once."""
        configs = [self.path / CONFIG, self.path / GENERATION_CONFIG]
        return hash_files([file for file in configs if file.is_file()] + list(self.files))


@dataclass(frozen=True)
class EagleCheckpoint(DraftCheckpoint):
    """An EAGLE draft. Besides its weights ``tensors`` has ``token_map [V_d] i64``, the target's id
    of each row of the head, if those are fewer than the target's tokens."""

    config: EagleConfig


@dataclass(frozen=True)
class MedusaCheckpoint(DraftCheckpoint):
    """Medusa heads."""

    config: MedusaConfig


@dataclass(frozen=True)
class DraftModel(DraftCheckpoint):
    """A causal language model that drafts for another."""

    config: ModelConfig


def read_draft(
    path: Path, target: ModelConfig, token_map: Path | None = None
) -> EagleCheckpoint | MedusaCheckpoint | DraftModel:
    """Open a draft's folder and check it against its target; no weight is read yet.

    ``token_map``: a file of the target's ids (FR-Spec); the head keeps those rows only. A borrowed
    head stays borrowed: ``config.own_head`` is false and the target's rows are to be gathered.

    Raises:
        CheckpointError: the folder holds another kind of draft, is damaged, quantized, or does not
            fit the target; or the map does not fit; found and expected are named.
    """
    hf, named = _open(path)
    if is_medusa(hf, path, named):
        _refuse_token_map(path, "Medusa heads", token_map)
        return _medusa(path, read_medusa(hf, named, target), tuple(weight_files(named)))
    headers = normalise(named)
    kind = detect(hf, headers)
    if kind is None:
        _refuse_token_map(path, "a causal language model", token_map)
        model = load_checkpoint(path)
        config = model.config
        note = (
            f"draft: causal language model ({config.architecture}, {config.num_layers} layers of "
            f"width {config.hidden_size})"
        )
        return DraftModel(path, config, model.tensors, model.ignored, (note,), model.files)

    reading = read_eagle(hf, kind, headers, target)
    eagle = reading.config
    what = f"{path} does not fit EAGLE-{eagle.version} ({kind.format})"
    resolved = match(expected(eagle), headers, IGNORED, what)
    tensors, files = resolved.tensors, weight_files(headers)
    notes = [f"{kind.describe()}; reads {_reads(eagle, reading.capture.describe())}"]
    notes += [*reading.capture.notes, *reading.notes]
    if D2T in headers:
        ids = read_d2t(headers[D2T], headers.get(T2D), target.vocab_size)
        if token_map is not None and eagle.maps_tokens:
            raise CheckpointError(
                f"{path} has its own token map (d2t, {len(ids)} tokens); the token map {token_map} "
                "cannot be used with it: leave speculative_token_map out"
            )
        if not eagle.maps_tokens and not is_identity(ids):
            raise CheckpointError(
                f"{path}: d2t reorders a head of all {len(ids)} tokens, which is not supported"
            )
        if eagle.maps_tokens:
            tensors[TOKEN_MAP] = _held(ids, headers[D2T].file)
            notes.append(_coverage(ids, target, "d2t"))
            if is_identity(ids):
                notes.append("d2t is all zeros: the draft vocabulary was possibly never calibrated")
    if token_map is not None:
        eagle, cut = cut_head(eagle, tensors, token_map, target)
        files.append(token_map)
        notes += cut
    notes += [
        f"the {part} is the target's"
        for part, own in (("embedding", eagle.own_embedding), ("head", eagle.own_head))
        if not own
    ]
    used = {D2T} if TOKEN_MAP in tensors and token_map is None else set()
    ignored = tuple(sorted(headers[name].name for name in set(resolved.ignored) - used))
    return EagleCheckpoint(path, eagle, LazyTensors(tensors), ignored, tuple(notes), tuple(files))


def cut_head(
    config: Eagle, tensors: dict[str, TensorHeader], token_map: Path, target: ModelConfig
) -> tuple[Eagle, tuple[str, ...]]:
    """A head of the whole vocabulary cut to the ids in a file: the config, and a line about it. Of
    ``tensors``, the map is added and a head of the draft's own is cut."""
    ids = read_token_map(token_map, target.vocab_size)
    if len(ids) < target.vocab_size:
        config = dataclasses.replace(config, draft_vocab_size=len(ids))
        tensors[TOKEN_MAP] = _held(ids, token_map)
        if config.own_head:
            tensors["head.weight"] = PickedRows.of(tensors["head.weight"], ids)
    return config, (_coverage(ids, target, str(token_map)),)


def describe_draft(path: Path) -> str | None:
    """The kind of draft network in a folder, in one line; None for a causal language model.

    Raises CheckpointError for drafts of kinds that this version does not run.
    """
    hf, named = _open(path)
    if is_medusa(hf, path, named):
        return describe_medusa(named)
    kind = detect(hf, normalise(named))
    return kind.describe() if kind else None


def _open(path: Path) -> tuple[HfConfig, dict[str, TensorHeader]]:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; a draft checkpoint is one")
    hf = HfConfig.read(path)
    refuse_other_kinds(hf)
    return hf, read_head_headers(path)


def _medusa(path: Path, heads: MedusaReading, files: tuple[Path, ...]) -> MedusaCheckpoint:
    found = heads.resolved
    tensors = LazyTensors(found.tensors)
    return MedusaCheckpoint(path, heads.config, tensors, found.ignored, heads.notes, files)


def _refuse_token_map(path: Path, what: str, token_map: Path | None) -> None:
    if token_map is not None:
        raise CheckpointError(
            f"{path} holds {what}; the token map {token_map} is for EAGLE drafts only"
        )


def _reads(eagle: EagleConfig, captured: str) -> str:
    return captured if eagle.version == 3 else "the output of the target's final norm"


def _coverage(ids: Tensor, target: ModelConfig, source: str) -> str:
    covered = set(ids.tolist())
    text = f"proposes {len(covered)} of the target's {target.vocab_size} tokens ({source})"
    ends = [token for token in target.eos_token_ids if token not in covered]
    if ends:
        text += f"; the end of text ({', '.join(map(str, ends))}) is not among them"
    return text


def _held(ids: Tensor, file: Path) -> TensorHeader:
    return HeldTensor(TOKEN_MAP, file, "I64", tuple(ids.shape), ids)
