"""The backends by name, including those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from trtspec.backends.aoti import AotiBackend
from trtspec.backends.base import Backend, NoOptions
from trtspec.backends.eager import EagerBackend
from trtspec.backends.onnx import OnnxBackend
from trtspec.backends.tensorrt import TensorRTBackend
from trtspec.config.strict import nearest
from trtspec.errors import ConfigError

ENTRY_POINTS = "trtspec.backends"
"""Group of the entry points by which other packages add a `Backend`, as an object."""
AUTO = "auto"
DEFAULT = AotiBackend.name
"""The backend for auto, if everything that it compiles with is present."""
WITHOUT_COMPILER = EagerBackend.name
"""The backend for auto otherwise."""
_BUILT_IN = (AotiBackend(), OnnxBackend(), TensorRTBackend(), EagerBackend())
_ELSEWHERE = ("pytorch", "_autodeploy")


@cache
def backends() -> Mapping[str, Backend]:
    """By name.

    Raises:
        ConfigError: another package's backend has a name that is taken.
    """
    found: dict[str, Backend] = {backend.name: backend for backend in _BUILT_IN}
    for entry in entry_points(group=ENTRY_POINTS):
        backend: Backend = entry.load()
        if backend.name in found or backend.name == AUTO:
            raise ConfigError(
                f"the entry point {entry.value} adds a backend {backend.name!r}, a name that is "
                "taken; rename it or uninstall its package"
            )
        found[backend.name] = backend
    return found


def backend_named(name: str) -> Backend:
    """The backend of that name, or the default one for auto; ConfigError for any other name."""
    known = backends()
    wanted = usual_backend()[0] if name == AUTO else name
    if wanted not in known:
        absent = " is not available in this version" * (name in _ELSEWHERE)
        raise ConfigError(
            f"backend {name!r}{absent or ' is unknown'}"
            f"{nearest(name, known)} (available: {', '.join(known)})"
        )
    return known[wanted]


def usual_backend() -> tuple[str, str | None]:
    """The backend for auto here, and the reason if it is not the default."""
    missing = backends()[DEFAULT].lacks()
    return (DEFAULT, None) if missing is None else (WITHOUT_COMPILER, missing)


def options_of(backend: Backend, given: Mapping[str, Any]) -> Any:
    """The options of a build with that backend, from plain values.

    Raises:
        ConfigError: the backend has no such options, or a value is bad.
    """
    if given and backend.options_class is NoOptions:
        for other in backends().values():
            names = {entry.name for entry in fields(other.options_class)}
            if not set(given) <= names:
                continue
            options = other.parse_options(given)
            if options == other.options_class():  # nothing but defaults
                return NoOptions()
            raise ConfigError(
                f"options of {other.title} were given ({options}) with backend "
                f"{backend.name!r}; they need backend {other.name!r}"
            )
    return backend.parse_options(given)
