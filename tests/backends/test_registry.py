"""The registry of backends: names, defaults, and what each says of itself."""

from __future__ import annotations

import pytest

from trtspec.backends.base import Backend
from trtspec.backends.registry import backend_named, backends
from trtspec.builder.plan import plan_build
from trtspec.builder.resolve import resolve_build
from trtspec.config.build_config import DTYPES, BuildConfig
from trtspec.errors import ConfigError

from ..config.test_build import MODEL

BACKENDS = list(backends().values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pytorch", "backend 'pytorch' is not available in this version.*available: aoti, onnx"),
        ("aotii", "backend 'aotii' is unknown; did you mean `aoti`"),
        ("", "backend '' is unknown"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    """Refused before any file is read."""
    with pytest.raises(ConfigError, match=words):
        plan_build("no-such-checkpoint", BuildConfig(backend=name))


def test_auto_is_the_first() -> None:
    assert backend_named("auto") is BACKENDS[0]
    assert resolve_build(BuildConfig(), MODEL)[0].backend == BACKENDS[0].name


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_what_a_backend_says_of_itself(backend: Backend) -> None:
    """Enough for the messages that are made of it."""
    assert backend.title and set(backend.dtypes) <= set(DTYPES)
    assert bool(backend.no_dtype) == (set(backend.dtypes) != set(DTYPES))
    assert bool(backend.compiler) == backend.makes_artifacts
    assert backend.parse_options({}) == backend.options_class()
    assert backend.elsewhere.startswith("--")
    for asked in ("auto", "cpu", "cuda"):
        try:
            device, reason = backend.resolve_device(asked)
        except ConfigError as error:
            assert f"device {asked!r} was asked for" in str(error)
            continue
        assert device in ("cpu", "cuda") and (device == asked or reason)
