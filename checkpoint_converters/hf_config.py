"""config.json in the spellings of transformers 4 and 5: what all families read alike.

A GGUF file has its own keys for the same; see `gguf_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile, find_gguf, open_gguf
from checkpoint_converters.containers.safetensors_files import read_json
from checkpoint_converters.gguf_config import ARCHITECTURE, read_gguf_config
from checkpoint_converters.gguf_keys import GgufKeys
from trtspec.config.model import DTYPES
from trtspec.errors import CheckpointError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True)
class HfConfig:
    """The two JSON files of a folder, and where they came from (for messages). For a GGUF file,
    ``folder`` is that file and ``values`` are its metadata."""

    folder: Path
    values: Mapping[str, Any]
    generation: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> HfConfig:
        """The config of a folder. For a GGUF file, or a folder with one, only its architecture: the
        rest is read with its family's keys, see `of_gguf`.

        Raises CheckpointError if config.json is missing or either file is damaged.
        """
        gguf = find_gguf(folder)
        if gguf is not None:
            return cls(gguf, {ARCHITECTURE: open_gguf(gguf).text(ARCHITECTURE)}, {})
        generation = folder / GENERATION_CONFIG
        return cls(
            folder,
            read_json(folder / CONFIG),
            read_json(generation) if generation.is_file() else {},
        )

    @classmethod
    def of_gguf(cls, file: GgufFile, keys: GgufKeys) -> HfConfig:
        """The config in a GGUF file; see `read_gguf_config` for errors."""
        return cls(file.path, read_gguf_config(file, keys), {})

    @property
    def is_gguf(self) -> bool:
        """Whether ``values`` come from a GGUF file."""
        return ARCHITECTURE in self.values

    @property
    def source(self) -> Path:
        """The file that ``values`` come from."""
        return self.folder if self.is_gguf else self.folder / CONFIG

    def get(self, key: str, default: Any = None) -> Any:
        """A value; JSON's null counts as absent."""
        value = self.values.get(key)
        return default if value is None else value

    def replacing(self, defaults: Mapping[str, Any]) -> HfConfig:
        """A copy with these values for absent keys; JSON's null counts as present."""
        return replace(self, values={**defaults, **self.values})

    def require(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.source} does not say {key}")
        return value

    def refuse(self, message: str) -> CheckpointError:
        """An error about this file, to raise."""
        return CheckpointError(f"{self.source}: {message}")


def read_dtype(hf: HfConfig) -> str | None:
    """The dtype in config.json (``dtype`` or, older, ``torch_dtype``), or None."""
    dtype = hf.get("dtype", hf.get("torch_dtype"))
    if dtype in (None, "auto"):
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise hf.refuse(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    return name


def read_eos(hf: HfConfig) -> tuple[int, ...]:
    """End tokens, from generation_config.json (one or a list) or else config.json."""
    file, value = GENERATION_CONFIG, hf.generation.get("eos_token_id")
    if value is None:
        file, value = CONFIG, hf.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    wrong = [token for token in ids if isinstance(token, bool) or not isinstance(token, int)]
    if wrong:
        raise CheckpointError(
            f"{hf.folder / file}: eos_token_id {value!r} is neither a token id nor a list of them"
        )
    return tuple(dict.fromkeys(ids))
