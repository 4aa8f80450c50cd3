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

    runs: what it reads, for lists. recognises: whether a folder holds such a draft, judging by its
    config and tensors, never by its name; CheckpointError for an unsupported relative. describe:
    the decision in one line; None for a plain language model. read: opens a folder, checks it
    against the target's config and cuts its head by a token map, if given; no weight is read yet.
    rank: higher ranks are tried first; the more specific a sign is, the higher. speculators: that
    library's name for such drafts. sign: how users recognise such a folder.
    """

    runs: str
    recognises: Callable[[Any], bool]
    describe: Callable[[Any], str | None]
    read: Callable[[Any, Any, Path | None], Any]
    rank: int = 100
    speculators: Sequence[str] = ()
    sign: str = ""
