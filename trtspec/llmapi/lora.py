"""Adapters of an `LLM`: which are loaded, and which one a request asks for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.builder.adapters import load_adapter
from trtspec.config.strict import strict_config
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError, RequestError
from trtspec.log import logger
from trtspec.models.adapters import Adapter


@strict_config(error=RequestError)
@dataclass(frozen=True)
class LoRARequest:
    """The adapter of a request, as vLLM and TensorRT-LLM spell it.

    lora_name: the name it is loaded under and reported by in metrics. lora_int_id: 1 or more, the
    caller's own number; trtspec identifies adapters by name. lora_path: its folder, in PEFT's
    format; None or empty: an adapter with this name is already loaded.
    """

    lora_name: str
    lora_int_id: int = 1
    lora_path: str | None = None

    def __post_init__(self) -> None:
        if not self.lora_name:
            raise RequestError("lora_name is empty; an adapter has a name")
        if self.lora_int_id < 1:
            raise RequestError(f"lora_int_id={self.lora_int_id} must be at least 1")


def read_modules(given: Any) -> dict[str, str]:
    """The folders of adapters by name, from ``{name: path}``, a list of ``name=path``, or mappings
    with ``name`` and ``path`` (or `LoRARequest`).

    Raises:
        ConfigError: it is none of these, or a name occurs twice.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = [(str(name), str(path)) for name, path in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = [_module(each) for each in given]
    else:
        raise ConfigError(
            f"lora_modules must be {{name: path}} or a list of 'name=path', got {given!r:.80}"
        )
    names = [name for name, _ in pairs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"lora_modules has the name {twice[0]!r} twice")
    return dict(pairs)


def _module(given: Any) -> tuple[str, str]:
    if isinstance(given, LoRARequest):
        given = {"name": given.lora_name, "path": given.lora_path}
    if isinstance(given, Mapping) and {"name", "path"} <= given.keys() and given["path"]:
        return str(given["name"]), str(given["path"])
    name, equals, path = str(given).partition("=")
    if not isinstance(given, str) or not (name and equals and path):
        raise ConfigError(f"lora_modules: {given!r:.80} is no 'name=path'")
    return name, path


class LoadedAdapters:
    """The adapters of an engine, by name; usable from any thread. An unloaded adapter stays in use
    for the requests that already have it."""

    def __init__(self, engine: EngineConfig, modules: Mapping[str, str]) -> None:
        """``modules``: folders of adapters to load at once, by name. Raises as `load`."""
        self._engine = engine
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._loaded: dict[str, tuple[Adapter, str]] = {}  # with its folder
        for name, path in modules.items():
            self.load(name, path)

    @property
    def paths(self) -> dict[str, str]:
        """The folders of loaded adapters, by name."""
        with self._lock:
            return {name: path for name, (_, path) in self._loaded.items()}

    def load(self, name: str, path: str | Path) -> Adapter:
        """Read an adapter, unless it is already loaded from this folder under this name.

        Raises:
            RequestError: the engine has no room for adapters or only for lower ranks, or the name
                belongs to another adapter.
            CheckpointError: see `load_adapter`.
        """
        folder = str(Path(path).expanduser().resolve())
        with self._lock:
            known = self._known(name, folder)
        if known is not None:
            return known
        # Without the lock: a server looks names up while large files are read.
        adapter = load_adapter(name, next(self._numbers), Path(folder), self._engine)
        with self._lock:
            known = self._known(name, folder)
            if known is not None:  # another thread was faster
                return known
            self._loaded[name] = adapter, folder
        logger.info("adapter %s: %d layers, from %s", name, len(adapter.layers), folder)
        return adapter

    def unload(self, name: str) -> None:
        """Forget an adapter; RequestError if it is not loaded."""
        with self._lock:
            if name not in self._loaded:
                raise RequestError(_unknown(name, self._loaded))
            del self._loaded[name]

    def of(self, request: LoRARequest | None) -> Adapter | None:
        """The adapter that a request asks for, loaded on demand; None for None.

        Raises:
            RequestError: it names an adapter that is not loaded, without a folder; or see `load`.
            CheckpointError: see `load`.
        """
        if request is None:
            return None
        if not isinstance(request, LoRARequest):
            raise RequestError(
                f"lora_request must be a LoRARequest or a list of them, got "
                f"{type(request).__name__} {request!r:.60}"
            )
        if request.lora_path:
            return self.load(request.lora_name, request.lora_path)
        with self._lock:
            if request.lora_name not in self._loaded:
                raise RequestError(_unknown(request.lora_name, self._loaded))
            return self._loaded[request.lora_name][0]

    def _known(self, name: str, folder: str) -> Adapter | None:
        """The adapter of this name, if it is loaded; RequestError if it is from another folder."""
        adapter, source = self._loaded.get(name, (None, folder))
        check_folder(name, source, folder)
        return adapter


def check_folder(name: str, known: str, asked: str) -> None:
    """RequestError: an adapter of this name is loaded from another folder than is asked for."""
    if known != asked:
        raise RequestError(
            f"an adapter {name!r} is loaded from {known}, and {asked} was asked for; "
            "unload it first, or choose another name"
        )


def _unknown(name: str, loaded: Mapping[str, object]) -> str:
    return (
        f"no adapter {name[:128]!r} is loaded (loaded: {', '.join(loaded) or 'none'}); load it, or "
        "give its lora_path"
    )
