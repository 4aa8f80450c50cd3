"""Where checkpoints and built engines are found on disk."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download

import trtspec
from checkpoint_converters.containers.gguf_file import SUFFIX as GGUF
from trtspec.builder.packaged import PACKAGED, find_packaged, packaged_name
from trtspec.errors import CheckpointError

CACHE_VARIABLE = "TRTSPEC_CACHE_DIR"
_WANTED_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "medusa_lm_head.pt")
# EAGLE's authors publish such files. Where there are safetensors too, those hold the same.
_PICKLED_WEIGHTS = ("pytorch_model*.bin",)


def cache_root() -> Path:
    """The folder for built engines: $TRTSPEC_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtspec"


def assets_root() -> Path:
    """The folder of the embedded checkpoints."""
    return Path(trtspec.__path__[0]) / "assets"


def embedded_checkpoints() -> list[str]:
    """Names that need no path: the checkpoints that ship inside the package."""
    return sorted(p.parent.name for p in assets_root().glob("*/config.json"))


def embedded_drafts(target: Path) -> list[str]:
    """Names of the embedded drafts for a target that `find_model` found: the embedded checkpoints
    called like it with more behind. Only embedded and packaged targets have any."""
    is_embedded = target.parent == assets_root()
    name = target.name if is_embedded else packaged_name(target)
    return [n for n in embedded_checkpoints() if name and n.startswith(f"{name}-")]


def find_model(model: str | Path) -> Path:
    """Resolve a folder, a GGUF file, the name of an embedded or a packaged checkpoint, or a Hugging
    Face id: to the file as it is, or to a folder.

    Raises:
        CheckpointError: none of these; the message lists the names. Or the package of a packaged
            one is not installed.
    """
    path = Path(model).expanduser()
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
    is_path = path.is_absolute() or str(model).startswith(".") or path.suffix.lower() == GGUF
    if is_path or str(model).count("/") != 1:
        raise CheckpointError(
            f"no model {str(model)!r}: not a folder, not an embedded checkpoint ({names}) "
            "and not a Hugging Face id of the form owner/name"
        )
    try:
        folder = Path(snapshot_download(str(model), allow_patterns=list(_WANTED_FILES)))
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.pt")):
            snapshot_download(str(model), allow_patterns=list(_PICKLED_WEIGHTS))
        return folder
    except Exception as error:
        raise CheckpointError(
            f"no folder {str(model)!r}, no embedded checkpoint of that name ({names}), and the "
            f"Hugging Face hub did not deliver it: {error}"
        ) from error
