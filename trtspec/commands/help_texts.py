"""Words that several programs say of the same flag; what a flag may be, its registry says."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.backends.registry import DEFAULT, backends
from trtspec.config.build import DEVICES, BuildConfig
from trtspec.config.model import DTYPES
from trtspec.config.speculative import METHODS, NO_METHOD
from trtspec.formats.registry import weight_dtypes


def one_of(names: Sequence[str], default: str | None = None) -> str:
    """``a, b (default) or c``."""
    shown = [f"{name} (default)" if name == default else name for name in names]
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


_DEFAULTS = BuildConfig()

DTYPE = one_of((_DEFAULTS.dtype, *DTYPES), _DEFAULTS.dtype)
BACKEND = one_of(tuple(backends()), DEFAULT)
DEVICE = one_of(DEVICES, _DEFAULTS.device) + "; auto: cuda where torch finds one"
WEIGHT_DTYPE = (
    f"of linear layers: {one_of(weight_dtypes(), _DEFAULTS.weight_dtype)}; auto: the checkpoint's "
    "int8, else --dtype"
)
METHOD = f"{one_of((*METHODS, NO_METHOD))} (no speculation)"
