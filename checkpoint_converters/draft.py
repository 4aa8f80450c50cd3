"""Draft checkpoints of every format: EAGLE, DFlash, Medusa heads and causal language models.

PARD is a language model and P-EAGLE an EAGLE-3 network, each with a mask token."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from checkpoint_converters.checkpoint import config_files, load_checkpoint
from checkpoint_converters.containers.safetensors_files import (
    LazyTensors,
    TensorHeader,
    weight_files,
)
from checkpoint_converters.containers.tensor_sources import Flattened, HeldTensor, PickedRows
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.dflash import (
    DFlashReading,
    describe_dflash,
    expected_dflash,
    is_dflash,
    read_dflash,
)
from checkpoint_converters.draft_kind import detect, refuse_other_kinds
from checkpoint_converters.eagle_fields import read_eagle
from checkpoint_converters.eagle_names import D2T, IGNORED, MASK_HIDDEN, T2D, expected, normalise
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.mask_token import has_pard_token, read_mask_token
from checkpoint_converters.medusa import (
    MedusaReading,
    describe_medusa,
    is_medusa,
    read_head_headers,
    read_medusa,
)
from checkpoint_converters.names import match
from checkpoint_converters.token_map import is_identity, read_d2t, read_token_map
from trtspec.config.draft import DraftConfig
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.speculative.block.shape import DFlashConfig
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.medusa.shape import MedusaConfig
from trtspec.speculative.parallel.shape import PardConfig

TOKEN_MAP = "token_map"

Eagle = TypeVar("Eagle", bound=EagleConfig)


@dataclass(frozen=True)
class DraftCheckpoint:
    """A draft that fits its target: an `EagleCheckpoint`, a `DFlashCheckpoint`, a
    `MedusaCheckpoint` or a `DraftModel`.

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
        """Its name in `trtspec.engine.drafts`: ``"eagle"``, ``"medusa"``, ``"model"``, ..."""
        return self.config.kind

    @property
    def content(self) -> list[Path]:
        """The files by which it is known: configs, weight files and token map."""
        return config_files(self.path) + list(self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Hash (32 hex digits) of its content; for a causal language model that of
        `checkpoint_converters.fingerprint`. Reads all of it, once."""
        return hash_files(self.content)


@dataclass(frozen=True)
class EagleCheckpoint(DraftCheckpoint):
    """An EAGLE draft. Besides its weights ``tensors`` has ``token_map [V_d] i64``, the target's id
    of each row of the head, if those are fewer than the target's tokens."""

    config: EagleConfig


@dataclass(frozen=True)
class DFlashCheckpoint(DraftCheckpoint):
    """A DFlash draft, with ``token_map`` as that of an `EagleCheckpoint`."""

    config: DFlashConfig


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
) -> EagleCheckpoint | DFlashCheckpoint | MedusaCheckpoint | DraftModel:
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
    if is_dflash(hf):
        _refuse_token_map(path, "a DFlash draft", token_map)
        return _dflash(path, read_dflash(hf, headers, target), headers, target)
    kind = detect(hf, headers)
    if kind is None:
        _refuse_token_map(path, "a causal language model", token_map)
        return _language_model(hf, path)

    reading = read_eagle(hf, kind, headers, target)
    eagle = reading.config
    what = f"{path} does not fit {kind.name} ({kind.format})"
    if MASK_HIDDEN in headers:  # written with leading dimensions of 1
        headers[MASK_HIDDEN] = Flattened.of(headers[MASK_HIDDEN])
    resolved = match(expected(eagle), headers, IGNORED, what)
    tensors, files = resolved.tensors, weight_files(headers)
    notes = [f"{kind.describe()}; reads {_reads(eagle, reading.capture.describe())}"]
    notes += [*reading.capture.notes, *reading.notes]
    if D2T in headers and token_map is not None and eagle.maps_tokens:
        raise CheckpointError(
            f"{path} has its own token map (d2t, {headers[D2T].shape[0]} tokens); the token map "
            f"{token_map} cannot be used with it: leave speculative_token_map out"
        )
    notes += _read_map(path, eagle, headers, tensors, target)
    if token_map is not None:
        eagle, cut = cut_head(eagle, tensors, token_map, target)
        files.append(token_map)
        notes += cut
    notes += _borrowed(eagle)
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
    if is_dflash(hf):
        return describe_dflash(hf)
    kind = detect(hf, normalise(named))
    if kind is None and has_pard_token(hf):
        return _pard(read_mask_token(hf))
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


def _language_model(hf: HfConfig, path: Path) -> DraftModel:
    """A causal language model, with a mask token (PARD) or without."""
    model = load_checkpoint(path)
    config, kind = model.config, "draft: causal language model"
    if has_pard_token(hf):
        mask_token = read_mask_token(hf)
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        kind = _pard(mask_token)
        try:
            config = PardConfig(**fields, mask_token=mask_token)
        except ConfigError as error:
            raise hf.refuse(str(error)) from error
    note = (
        f"{kind} ({config.architecture}, {config.num_layers} layers of width {config.hidden_size})"
    )
    return DraftModel(path, config, model.tensors, model.ignored, (note,), model.files)


def _pard(mask_token: int) -> str:
    return f"draft: PARD, causal language model with mask token {mask_token}"


def _dflash(
    path: Path, reading: DFlashReading, headers: dict[str, TensorHeader], target: ModelConfig
) -> DFlashCheckpoint:
    config = reading.config
    resolved = match(expected_dflash(config), headers, IGNORED, f"{path} does not fit DFlash")
    tensors = resolved.tensors
    notes = [*reading.notes, *_read_map(path, config, headers, tensors, target)]
    notes += _borrowed(config)
    used = {D2T} if TOKEN_MAP in tensors else set()
    ignored = tuple(sorted(headers[name].name for name in set(resolved.ignored) - used))
    files = tuple(weight_files(headers))
    return DFlashCheckpoint(path, config, LazyTensors(tensors), ignored, tuple(notes), files)


def _read_map(
    path: Path,
    config: EagleConfig | DFlashConfig,
    headers: dict[str, TensorHeader],
    tensors: dict[str, TensorHeader],
    target: ModelConfig,
) -> list[str]:
    """Add a checkpoint's own map of a draft vocabulary to ``tensors``; lines about it."""
    if D2T not in headers:
        return []
    ids = read_d2t(headers[D2T], headers.get(T2D), target.vocab_size)
    if not config.maps_tokens:
        if not is_identity(ids):
            raise CheckpointError(
                f"{path}: d2t reorders a head of all {len(ids)} tokens, which is not supported"
            )
        return []
    tensors[TOKEN_MAP] = _held(ids, headers[D2T].file)
    notes = [_coverage(ids, target, "d2t")]
    if is_identity(ids):
        notes.append("d2t is all zeros: the draft vocabulary was possibly never calibrated")
    return notes


def _borrowed(config: EagleConfig | DFlashConfig) -> list[str]:
    parts = (("embedding", config.own_embedding), ("head", config.own_head))
    return [f"the {part} is the target's" for part, own in parts if not own]


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
