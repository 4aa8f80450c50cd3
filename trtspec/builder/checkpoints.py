"""Checkpoints of targets and drafts, as the speculative methods read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from checkpoint_converters import (
    AuxiliaryWeights,
    Checkpoint,
    DraftCheckpoint,
    DraftFolder,
    QuantisedLayer,
    load_checkpoint,
    read_config,
    require_copyable,
    write_quantised,
)
from trtspec.builder.tokenizer import find_tokenizer, with_ends
from trtspec.config.model import ModelConfig
from trtspec.speculative.base import DraftMethod
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.registry import methods

__all__ = [
    "Checkpoint",
    "QuantisedLayer",
    "config_as_said",
    "describe_draft",
    "load_target",
    "read_draft",
    "read_own_draft",
    "require_copyable",
    "target_config",
    "write_quantised",
]


def config_as_said(path: Path) -> ModelConfig:
    """See `read_config`; drafts may be inside the target's checkpoint. End tokens are those of its
    configs only, for a plan that reports what the tokenizer adds."""
    return read_config(path, _auxiliary())


def target_config(path: Path) -> ModelConfig:
    """The config of a target with all end tokens of an engine: those of its configs, and those of
    its tokenizer if it can be read."""
    return _with_all_ends(path, config_as_said(path))


def load_target(path: Path, tokenizer: Path | None = None) -> Checkpoint:
    """See `load_checkpoint`; its config is that of `target_config`. ``tokenizer``: location of the
    tokenizer that names end tokens, if not the checkpoint's own."""
    found = load_checkpoint(path, _auxiliary())
    return replace(found, config=_with_all_ends(tokenizer or path, found.config))


def _with_all_ends(path: Path, config: ModelConfig) -> ModelConfig:
    return with_ends(config, find_tokenizer(path, skip_damaged=True))[0]


def read_draft(path: Path, target: ModelConfig, token_map: Path | None = None) -> DraftCheckpoint:
    """Open a draft's folder and check it against its target; no weight is read yet.

    ``token_map``: a file of the target's ids (FR-Spec); the head keeps only those rows. A borrowed
    head stays borrowed: ``config.own_head`` is false and the target's rows are gathered.

    Raises:
        CheckpointError: the folder holds another kind of draft, is damaged, quantized, or does not
            fit the target; or the map does not fit; found and expected values are named.
    """
    folder = _open(path)
    checkpoint: DraftCheckpoint = _reader_of(folder).read(folder, target, token_map)
    return checkpoint


def read_own_draft(
    path: Path, method: DraftMethod, target: ModelConfig, token_map: Path | None = None
) -> DraftCheckpoint:
    """A method's networks inside a target's checkpoint; see `read_draft`."""
    assert method.reader is not None and method.by_target, "no others are looked for there"
    checkpoint: DraftCheckpoint = method.reader.read(_open(path), target, token_map)
    return checkpoint


def describe_draft(path: Path) -> str | None:
    """One line on the kind of draft network in a folder; None for a causal language model.

    Raises:
        CheckpointError: this version does not run that kind.
    """
    folder = _open(path)
    return _reader_of(folder).describe(folder)


def _auxiliary() -> tuple[AuxiliaryWeights, ...]:
    found = (method.in_target for method in methods().values())
    return tuple(part for part in found if part is not None)


def _readers() -> list[DraftReader]:
    """The readers, in the order in which they are tried."""
    all_methods = methods().values()
    found = [each.reader for each in all_methods if each.reader and not each.by_target]
    return sorted(found, key=lambda reader: -reader.rank)


def _open(path: Path) -> DraftFolder:
    readers = _readers()
    names = [reader.runs for reader in readers]
    folder = DraftFolder.open(path, f"{', '.join(names[:-1])} and {names[-1]}", _auxiliary())
    kind = folder.hf.get("speculators_model_type")
    if kind is not None and not any(kind in reader.speculators for reader in readers):
        raise folder.not_run(f"a speculators draft of type {kind!r}")
    return folder


def _reader_of(folder: DraftFolder) -> DraftReader:
    """The reader for a folder. The last one treats any folder as a language model."""
    return next(reader for reader in _readers() if reader.recognises(folder))
