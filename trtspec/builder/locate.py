"""Finds checkpoints and built engines on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import snapshot_download

import trtspec
from checkpoint_converters.containers.gguf_file import SUFFIX as GGUF
from trtspec.builder.made_for import MADE_FOR
from trtspec.builder.packaged import PACKAGED, find_packaged, packaged_name
from trtspec.builder.tokenizer import TOKENIZER_FILES
from trtspec.errors import BuildError, CheckpointError, ConfigError
from trtspec.log import logger
from trtspec.writable import check_folder

CACHE_VARIABLE = "TRTSPEC_CACHE_DIR"
_WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    MADE_FOR,
    "*.safetensors",
    "*.safetensors.index.json",
    "medusa_lm_head.pt",
    *TOKENIZER_FILES,
)
"""The files of a repository that are read. Asking for more would make an offline hub reject a copy
that has everything needed."""
_UNWANTED = ("*/*", "consolidated*")
"""Folders, and Mistral's second copy of all weights."""
# EAGLE's authors publish such files. Where there are safetensors too, those hold the same.
_PICKLED_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


def cache_root() -> Path:
    """The folder for built engines: $TRTSPEC_CACHE_DIR, else the user's cache folder.

    Raises:
        ConfigError: neither is known.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    try:
        if chosen:
            return Path(chosen).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtspec"
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder to keep built engines in: HOME is not set, and there is "
            f"no passwd entry; name a folder for them in {CACHE_VARIABLE}"
        ) from error


def require_cache() -> None:
    """Raise BuildError if the folder for built engines is not writable."""
    root = cache_root()
    try:
        check_folder(root)
    except OSError as error:
        raise BuildError(
            f"the cache folder {root} cannot be written: {error}; name another one in "
            f"{CACHE_VARIABLE}"
        ) from error


def assets_root() -> Path:
    """The folder of the embedded checkpoints."""
    return Path(trtspec.__path__[0]) / "assets"


def embedded_checkpoints() -> list[str]:
    """Names of the checkpoints that ship with the package."""
    return sorted(p.parent.name for p in assets_root().glob("*/config.json"))


def embedded_drafts(target: Path) -> list[str]:
    """Names of the embedded drafts for a target returned by `find_model`: embedded checkpoints
    whose names extend its name. Only embedded and packaged targets have any."""
    is_embedded = target.parent == assets_root()
    name = target.name if is_embedded else packaged_name(target)
    return [n for n in embedded_checkpoints() if name and n.startswith(f"{name}-")]


def find_model(model: str | Path) -> Path:
    """Resolve a folder, a GGUF file, the name of an embedded or packaged checkpoint, or a Hugging
    Face id, to a file or folder.

    Raises:
        CheckpointError: it is none of these (the message lists the names), or the package of a
            packaged checkpoint is not installed.
    """
    path = Path(os.path.expanduser(model))  # as it is where there is no home folder
    if path.is_dir():
        return path
    embedded = assets_root() / str(model)
    if (embedded / "config.json").is_file():
        return embedded
    if path.exists():
        return path
    packaged = find_packaged(str(model))
    if packaged is not None:
        return packaged
    names = ", ".join((*embedded_checkpoints(), *PACKAGED))
    is_path = path.is_absolute() or str(model).startswith((".", "~")) or path.suffix.lower() == GGUF
    if is_path or str(model).count("/") != 1:
        raise CheckpointError(
            f"no model {str(model)!r}: not a folder, not an embedded checkpoint ({names}) "
            "and not a Hugging Face id of the form owner/name"
        )
    try:
        return _download(str(model))
    except Exception as error:
        kept = _kept(str(model))
        if kept is not None:
            first_line = str(error).partition("\n")[0]
            logger.warning("%s: %s; what is kept of it in %s is used", model, first_line, kept)
            return kept
        raise CheckpointError(
            f"no folder {str(model)!r}, no embedded checkpoint of that name ({names}), and the "
            f"Hugging Face hub did not deliver it: {error}"
        ) from error


def _download(name: str) -> Path:
    """Download the needed files of a repository, and pickled weights only if it has no others."""
    folder = _snapshot(name, _WANTED_FILES)
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.pt")):
        _snapshot(name, _PICKLED_WEIGHTS)
    return folder


def _snapshot(name: str, files: Sequence[str], local_files_only: bool = False) -> Path:
    wanted, unwanted = list(files), list(_UNWANTED)
    found = snapshot_download(
        name,
        allow_patterns=wanted,
        ignore_patterns=unwanted,
        local_files_only=local_files_only,
    )
    return Path(found)


def _kept(name: str) -> Path | None:
    """What the hub's cache holds of a repository, if it has a config and weights; whether these are
    complete shows when they are read. Other programs omit files that they do not read, such as
    another form of the tokenizer."""
    try:
        folder = _snapshot(name, ["config.json"], local_files_only=True)
    except Exception:
        return None
    weights = (path for kind in ("*.safetensors", "*.pt", "*.bin") for path in folder.glob(kind))
    return folder if (folder / "config.json").is_file() and any(weights) else None
