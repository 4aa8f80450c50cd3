"""TextStore: the recorded texts of a training, in a folder that survives a kill."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_MANIFEST = "rounds.jsonl"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class StoredText:
    """``file`` is in the folder, with ``tokens`` rows of hidden states, the first ``prompt`` of
    which are a prompt; ``key``: see `trtspec.train.rules.key_of`."""

    file: str
    tokens: int
    prompt: int
    key: str


class TextStore:
    """Texts come in rounds. A round counts once its line is in the manifest. Reading changes
    nothing; writers call `begin` first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: list[StoredText] = []
        self.dropped: Counter[str] = Counter()
        self.num_begun = 0
        self._manifest = folder / _MANIFEST
        self._whole = self._read()
        self.keys = {text.key for text in self.texts}

    @property
    def num_tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    @property
    def paths(self) -> list[Path]:
        return [self.folder / text.file for text in self.texts]

    def begin(self) -> None:
        """Create the folder, or remove what an interrupted round left in it. OSError: it cannot be
        written to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = {text.file for text in self.texts}
        for path in self.folder.iterdir():
            if path.name != _MANIFEST and path.name not in known:
                path.unlink()
        if self._manifest.exists():
            with self._manifest.open("r+b") as file:
                file.truncate(self._whole)

    def add_round(
        self, begun: int, texts: Sequence[StoredText], dropped: Mapping[str, int]
    ) -> None:
        """Record a round with this many texts begun; files of those kept are in the folder."""
        kept = [asdict(text) for text in texts]
        line = json.dumps({"begun": begun, "texts": kept, "dropped": dict(dropped)})
        # In one call and on disk: a line that a kill cuts is no line.
        with self._manifest.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._count(begun, texts, dropped)

    def _read(self) -> int:
        """The bytes of the manifest's complete lines; a kill may have cut the last one."""
        if not self._manifest.exists():
            return 0
        data = self._manifest.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            entry = json.loads(line)
            kept = [StoredText(**text) for text in entry["texts"]]
            self._count(entry["begun"], kept, entry["dropped"])
        return len(whole)

    def _count(self, begun: int, texts: Sequence[StoredText], dropped: Mapping[str, int]) -> None:
        self.texts += texts
        self.dropped.update(dropped)
        self.num_begun += begun
