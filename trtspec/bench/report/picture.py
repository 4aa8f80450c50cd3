"""Plots of measurements.

The only module that imports matplotlib, which the extra ``trtspec[bench]`` brings.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError
from trtspec.writable import check_file

if HAS_MATPLOTLIB := find_spec("matplotlib") is not None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure


def check_picture(path: Path) -> None:
    """ConfigError if no picture can be written there; asked before anything is measured."""
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
    """An empty figure; sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Any, title: str) -> None:
    """Style axes: title at the left, light grid, no box."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def write_picture(figure: Any, path: Path) -> None:
    """Write a figure in the format of its file name; ConfigError if that fails."""
    try:
        with rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
            figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
