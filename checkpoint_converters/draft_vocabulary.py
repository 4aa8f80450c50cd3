"""Which of the target's tokens a draft's head covers, and what it borrows from the target."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.containers.tensor_sources import HeldTensor, PickedRows
from checkpoint_converters.draft_names import D2T, T2D
from checkpoint_converters.token_map import (
    doubts_about,
    is_identity,
    read_d2t,
    read_token_map,
)
from trtspec.config.model import ModelConfig
from trtspec.config.state_reader import StateReader
from trtspec.errors import CheckpointError

TOKEN_MAP = "token_map"

Reader = TypeVar("Reader", bound=StateReader)


HEAD_ROWS = ("head.weight",)


def cut_head(
    config: Reader,
    tensors: dict[str, TensorHeader],
    token_map: Path,
    target: ModelConfig,
    of_tokens: Sequence[str] = HEAD_ROWS,
) -> tuple[Reader, tuple[str, ...]]:
    """Cut a head over the whole vocabulary to the ids in a file: the config, and a line about it.
    Adds the map to ``tensors`` and cuts those ``of_tokens`` (one row per token of the head) that
    the draft has."""
    ids = read_token_map(token_map, target.vocab_size)
    if len(ids) < target.vocab_size:
        config = dataclasses.replace(config, draft_vocab_size=len(ids))  # type: ignore[type-var]
        tensors[TOKEN_MAP] = held_map(ids, token_map)
        for name in of_tokens:
            if name in tensors:
                tensors[name] = PickedRows.of(tensors[name], ids)
    return config, (coverage(ids, target, str(token_map)),)


@dataclasses.dataclass(frozen=True)
class MappedHead(Generic[Reader]):
    """A network whose head covers the intended tokens. notes, doubts: see `DraftCheckpoint`. files:
    those used beside the checkpoint's. used: names of the map that was taken."""

    config: Reader
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    files: tuple[Path, ...] = ()
    used: frozenset[str] = frozenset()


def map_head(
    path: Path,
    config: Reader,
    headers: dict[str, TensorHeader],
    tensors: dict[str, TensorHeader],
    target: ModelConfig,
    token_map: Path | None,
    of_tokens: Sequence[str] = HEAD_ROWS,
) -> MappedHead[Reader]:
    """Add the checkpoint's own map of a draft vocabulary, or the one in a file, to ``tensors``;
    ``of_tokens``: see `cut_head`.

    Raises:
        CheckpointError: a map that does not fit, or two maps.
    """
    if D2T in headers and token_map is not None and config.maps_tokens:
        raise CheckpointError(
            f"{path} has its own token map (d2t, {headers[D2T].shape[0]} tokens); the token map "
            f"{token_map} cannot be used with it: leave vocabulary out"
        )
    notes, doubts = read_map(path, config, headers, tensors, target)
    used = frozenset({D2T} if TOKEN_MAP in tensors else ())
    if token_map is None:
        return MappedHead(config, tuple(notes), doubts, used=used)
    config, cut = cut_head(config, tensors, token_map, target, of_tokens)
    return MappedHead(config, (*notes, *cut), doubts, (token_map,))


def read_map(
    path: Path,
    config: StateReader,
    headers: dict[str, TensorHeader],
    tensors: dict[str, TensorHeader],
    target: ModelConfig,
) -> tuple[list[str], tuple[str, ...]]:
    """Add a checkpoint's own map of a draft vocabulary to ``tensors``. Returns lines about it, and
    those that are doubts."""
    if D2T not in headers:
        return [], ()
    t2d = headers.get(T2D)
    ids = read_d2t(headers[D2T], t2d, target.vocab_size)
    if not config.maps_tokens:
        if not is_identity(ids):
            raise CheckpointError(
                f"{path}: d2t reorders a head of all {len(ids)} tokens, which is not supported"
            )
        return [], ()
    tensors[TOKEN_MAP] = held_map(ids, headers[D2T].file)
    doubts = doubts_about(ids, t2d, target.vocab_size)
    return [coverage(ids, target, "d2t"), *doubts], doubts


def borrowed(config: StateReader) -> list[str]:
    """Lines about the target's parts that it uses."""
    parts = (("embedding", config.own_embedding), ("head", config.own_head))
    return [f"the {part} is the target's" for part, own in parts if not own]


def coverage(ids: Tensor, target: ModelConfig, source: str) -> str:
    """A line about the tokens that a draft can propose."""
    covered = set(ids.tolist())
    text = f"proposes {len(covered)} of the target's {target.vocab_size} tokens ({source})"
    ends = [token for token in target.eos_token_ids if token not in covered]
    if ends:
        text += f"; the end of text ({', '.join(map(str, ends))}) is not among them"
    return text


def held_map(ids: Tensor, file: Path) -> TensorHeader:
    """The map as a tensor that names the file it comes from."""
    return HeldTensor(TOKEN_MAP, file, "I64", tuple(ids.shape), ids)
