"""Loads libtrtspec_ops.so, which registers the ops as ``torch.ops.trtspec.*``.

Importing this module loads the library, once. It raises BuildError if the library is missing or was
built for another torch.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from trtspec.errors import BuildError

LIBRARY = Path(__file__).resolve().parent.parent / "lib" / "libtrtspec_ops.so"
"""The op library of this installation."""


def load_library(library: Path = LIBRARY) -> None:
    """Load an op library built for the running torch.

    Raises:
        BuildError: it is missing, was built for another version of torch, or does not load.
    """
    remedy = "install trtspec again: pip install --no-build-isolation <its source folder>"
    if not library.is_file():
        raise BuildError(f"the op library {library} is missing; {remedy}")
    try:
        built_for = str(
            json.loads((library.parent / "build_info.json").read_text())["torch_version"]
        )
    except (OSError, ValueError, KeyError) as error:
        raise BuildError(
            f"build_info.json beside {library} cannot be read ({error}); {remedy}"
        ) from error
    # What follows + names torch's accelerator, which the ops do not depend on.
    if built_for.split("+")[0] != torch.__version__.split("+")[0]:
        raise BuildError(
            f"the op library {library} was built for torch {built_for}, but torch"
            f" {torch.__version__} is running; {remedy}"
        )
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise BuildError(f"the op library {library} does not load ({error}); {remedy}") from error


load_library()
