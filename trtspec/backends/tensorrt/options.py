"""TensorRTConfig: for which GPU, and how, TensorRT builds engines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.config.strict import from_dict, nearest, strict_config
from trtspec.errors import ConfigError

VERBOSITIES = ("layer_names_only", "detailed", "none")
MAX_OPTIMIZATION_LEVEL = 5
_FIRST_WITH_BFLOAT16 = (8, 0)


@strict_config(none_means_default=True)
@dataclass(frozen=True)
class TensorRTConfig:
    """Options of a TensorRT build; ConfigError names a bad value.

    compute_capability: of the GPU to build for, such as ``8.9`` (also 89, sm89, sm_89); None: the
    GPU here. builder_optimization_level: 0 (fastest build) to 5; None: TensorRT's default.
    profiling_verbosity: what an engine reports about its layers. timing_cache: file of measured
    kernel times, read if it exists and written again; None: no such file. strip_plan: engines
    without weights, which are read from the folder's weight files when an engine is loaded. refit:
    loading an engine gives it the weights that the files hold then. The files may have been
    replaced by others of the same shapes, for example after further training. plugins: whether the
    target's engine makes its masks from packed ancestors, samples and accepts, using trtspec's
    plugins; None: if they can be used (see `decide_plugins`). paged_attention: whether sequences
    have cache blocks instead of a slot, with attention over them as a plugin.
    """

    compute_capability: str | None = None
    builder_optimization_level: int | None = None
    profiling_verbosity: str = "layer_names_only"
    timing_cache: str | None = None
    strip_plan: bool = False
    refit: bool = False
    plugins: bool | None = None
    paged_attention: bool = False

    def __post_init__(self) -> None:
        if self.compute_capability is not None:
            plain = _compute_capability(self.compute_capability)
            object.__setattr__(self, "compute_capability", plain)
        level = self.builder_optimization_level
        if level is not None and not 0 <= level <= MAX_OPTIMIZATION_LEVEL:
            raise ConfigError(
                f"builder_optimization_level={level} must be between 0 and {MAX_OPTIMIZATION_LEVEL}"
            )
        if self.profiling_verbosity not in VERBOSITIES:
            raise ConfigError(
                f"profiling_verbosity {self.profiling_verbosity!r} is unknown"
                f"{nearest(self.profiling_verbosity, VERBOSITIES)} "
                f"(available: {', '.join(VERBOSITIES)})"
            )
        if self.paged_attention and self.plugins is False:
            raise ConfigError(
                "paged_attention is a plugin, and plugins=False was given; leave one of them out"
            )

    @property
    def refits_at_load(self) -> bool:
        """Whether loading an engine gives it the weights of its folder."""
        return self.strip_plan or self.refit

    def check_dtype(self, dtype: str) -> None:
        """Raise ConfigError if the chosen GPU does not support a dtype."""
        if self.compute_capability is None or dtype != "bfloat16":
            return
        if tuple(map(int, self.compute_capability.split("."))) < _FIRST_WITH_BFLOAT16:
            raise ConfigError(
                f"dtype 'bfloat16' needs compute capability 8.0, {self.compute_capability} was "
                "asked for; use --dtype float16"
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorRTConfig:
        return from_dict(cls, data)


def _compute_capability(text: str) -> str:
    """``8.9`` from any of its spellings."""
    found = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)", text.lower())
    if found is None:
        raise ConfigError(
            f"compute_capability {text!r} is not of the form 8.9, 89 or sm89 (nvidia-smi "
            "--query-gpu=compute_cap --format=csv prints it)"
        )
    return f"{int(found[1])}.{found[2]}"
