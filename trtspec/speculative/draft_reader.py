"""DraftReader: how the checkpoints of a kind of draft are recognised and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DraftReader:
    """The reader of a method's checkpoints. Folders are `DraftFolder`, checkpoints
    `DraftCheckpoint` of ``checkpoint_converters``.

    runs: what it reads, for lists. recognises: whether a folder holds such a draft, by its config
    and tensors, never by its name; CheckpointError for a relative that is not run. describe: the
    decision in one line; None for a plain language model. read: opens a folder, checks it against
    the target's config and cuts its head by a token map, if one is given; no weight is read yet.
    rank: folders are shown to the highest first, and the more special a sign is, the higher.
    speculators: what the library of that name calls such drafts. sign: what shows users that a
    folder is one.
    """

    runs: str
    recognises: Callable[[Any], bool]
    describe: Callable[[Any], str | None]
    read: Callable[[Any, Any, Path | None], Any]
    rank: int = 100
    speculators: Sequence[str] = ()
    sign: str = ""
