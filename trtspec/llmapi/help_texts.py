"""Help texts of flags that several programs share; the values come from the registries."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.backends.registry import DEFAULT, backends
from trtspec.config.build_config import DEVICES, BuildConfig
from trtspec.config.model import DTYPES
from trtspec.formats.registry import weight_dtypes
from trtspec.speculative.registry import method_names


def one_of(names: Sequence[str], default: str | None = None) -> str:
    """``a, b (default) or c``."""
    shown = [f"{name} (default)" if name == default else name for name in names]
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


_DEFAULTS = BuildConfig()

DTYPE = one_of((_DEFAULTS.dtype, *DTYPES), _DEFAULTS.dtype)
TOKENIZER = "folder, or GGUF file, of a tokenizer to use in place of the checkpoint's own"
DEVICE = one_of(DEVICES, _DEFAULTS.device) + "; auto: cuda where torch finds one"


def method() -> str:
    """Help for ``--speculative_decoding_mode``."""
    return f"{one_of(method_names())} (no speculation)"


def backend() -> str:
    """Help for ``--backend``. Backends of other packages are looked up when the help is printed."""
    return one_of(tuple(backends()), DEFAULT)


def weight_dtype() -> str:
    """Help for ``--weight_dtype``."""
    known = one_of(weight_dtypes(), _DEFAULTS.weight_dtype)
    return f"of linear layers: {known}; auto: that of the checkpoint's weights, else --dtype"


KV_CACHE_DTYPE = (
    "in what target and drafts keep K/V: int8 (q8_0), with a scale of each token and head, or "
    "bfloat16 or float16, on backends aoti and eager; auto (default): --dtype, but float16 where "
    "weights are quantised"
)

STEPS_AHEAD = (
    "steps that are launched before the result of one is read (default: 0); running requests are "
    "then kept on the device"
)

RANKS = "processes of this host that the target is split over, on a CPU (default: 1)"
