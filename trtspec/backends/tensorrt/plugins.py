"""trtspec's plugins for TensorRT: locating their library, checking whether it can be used, loading
it."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.backends.tensorrt.package import require_tensorrt, tensorrt_version
from trtspec.backends.tensorrt.plugin_ops import DOMAIN, PLUGIN_VERSION, PLUGINS
from trtspec.errors import ConfigError

PLUGIN_LIBRARY = Path(__file__).resolve().parents[2] / "lib" / "libtrtspec_plugins.so"
_RTX, _RTX_LIBRARY = "tensorrt_rtx", "libtensorrt_rtx.so"
_REMEDY = (
    "build it in trtspec's source folder: cmake -S . -B build -DTENSORRT_ROOT=<folder of TensorRT> "
    "&& cmake --build build --target trtspec_plugins"
)


def decide_plugins(options: TensorRTConfig) -> tuple[TensorRTConfig, list[str]]:
    """The options with ``plugins`` decided, and why.

    Raises:
        ConfigError: they were requested and cannot be used.
    """
    asked = options.plugins
    if asked is False:
        return options, []
    problem = _problem()
    if problem is not None and (asked or options.paged_attention):
        what = "paged_attention" if options.paged_attention else "plugins"
        raise ConfigError(f"{what} was asked for, but {problem}, or leave {what} out")
    reason = "the target's engine accepts by itself" if problem is None else problem
    return replace(options, plugins=problem is None), [
        f"plugins {'off' if problem else 'on'}: {reason}"
    ]


def load_plugins() -> None:
    """Register the plugins with TensorRT, once per process.

    Raises:
        ConfigError: their library is missing or does not load.
    """
    problem = _library_problem()
    if problem is not None:
        raise ConfigError(
            f"the engine uses trtspec's plugins, but {problem}, or build --no-plugins"
        )
    registry = require_tensorrt().get_plugin_registry()
    if not _missing(registry):
        return
    registry.load_library(str(PLUGIN_LIBRARY))
    missing = _missing(registry)
    if missing:
        raise ConfigError(
            f"{PLUGIN_LIBRARY} gives {tensorrt_version()} no plugin {', '.join(missing)} (its log "
            f"says why); it may be of another version of TensorRT: {_REMEDY}"
        )


def _problem() -> str | None:
    """Why no engine can be built with the plugins, if so, and the remedy."""
    if require_tensorrt().__name__ == _RTX and not _loads(_RTX_LIBRARY):
        return (
            f"the parser of {tensorrt_version()} would end this process, as it adds plugins by way "
            f"of {_RTX_LIBRARY}, of which its package has another name; make a link of that name "
            f"to the package's {_RTX_LIBRARY}.1 in a folder of LD_LIBRARY_PATH"
        )
    return _library_problem()


def _library_problem() -> str | None:
    """Why the plugins cannot be loaded, if so, and the remedy."""
    if not PLUGIN_LIBRARY.is_file():
        return f"{PLUGIN_LIBRARY} is missing; {_REMEDY}"
    return None


def _loads(library: str) -> bool:
    """Whether the loader finds it by its name."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _missing(registry: Any) -> list[str]:
    return [name for name in PLUGINS if registry.get_creator(name, PLUGIN_VERSION, DOMAIN) is None]
