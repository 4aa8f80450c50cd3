"""Pictures of measurements.

The only module that imports matplotlib, which the extra ``trtspec[bench]`` brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError
from trtspec.writable import check_file

if HAS_MATPLOTLIB := find_spec("matplotlib") is not None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure


def check_picture(path: Path) -> None:
    """ConfigError if a picture could not be written there: found before anything is measured."""
    if not HAS_MATPLOTLIB:
        raise ConfigError("plots need matplotlib; install it with: pip install 'trtspec[bench]'")
    known = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in known:
        raise ConfigError(f"{path} must end in one of .{', .'.join(known)}")
    try:
        check_file(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches."""
    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Any, title: str) -> None:
    """Give axes the look that all pictures share: a title at the left, no box."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def write_picture(figure: Any, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """In the format that the name ends with; ConfigError if it cannot be written."""
    try:
        with rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
            figure.savefig(path, dpi=120, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
