"""When plugins are used, and what is said where they cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trtspec.backends.tensorrt.package as package
import trtspec.backends.tensorrt.plugins as plugins
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.backends.tensorrt.plugin_ops import DOMAIN, PLUGINS
from trtspec.errors import ConfigError


class FakeRegistry:
    """Loading a library gives it some plugins of trtspec's."""

    def __init__(self, given: tuple[str, ...]) -> None:
        self.given = given
        self.creators: dict[tuple[str, str, str], object] = {}
        self.loaded: list[str] = []

    def get_creator(self, name: str, version: str, namespace: str) -> object | None:
        return self.creators.get((name, version, namespace))

    def load_library(self, path: str) -> None:
        self.loaded.append(path)
        self.creators |= {(name, "1", DOMAIN): object() for name in self.given}


def install(
    monkeypatch: pytest.MonkeyPatch, name: str, given: tuple[str, ...] = PLUGINS
) -> FakeRegistry:
    registry = FakeRegistry(given)
    fake: Any = SimpleNamespace(
        __name__=name,
        __version__="11.0",
        get_plugin_registry=lambda: registry,
    )
    monkeypatch.setattr(package, "trt", fake)
    return registry


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "libtrtspec_plugins.so"
    path.write_bytes(b"")
    monkeypatch.setattr(plugins, "PLUGIN_LIBRARY", path)
    return path


def test_used_where_they_can_be(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    install(monkeypatch, "tensorrt")
    for asked, used in ((None, True), (True, True), (False, False)):
        decided, _ = plugins.decide_plugins(TensorRTConfig(plugins=asked))
        assert decided.plugins is used
    library.unlink()
    decided, (reason,) = plugins.decide_plugins(TensorRTConfig(plugins=None))
    assert decided.plugins is False and "-DTENSORRT_ROOT" in reason
    with pytest.raises(ConfigError, match=r"libtrtspec_plugins.so is missing; build it .*cmake"):
        plugins.decide_plugins(TensorRTConfig(plugins=True))
    words = r"paged_attention was asked for, but .* is missing; build it .*, or leave paged_atten"
    with pytest.raises(ConfigError, match=words):
        plugins.decide_plugins(TensorRTConfig(paged_attention=True))


def test_rtx_must_find_itself(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """To build engines with plugins; to run them, it need not."""
    registry = install(monkeypatch, "tensorrt_rtx")
    decided, (reason,) = plugins.decide_plugins(TensorRTConfig(plugins=None))
    assert decided.plugins is False and "libtensorrt_rtx.so.1 in a folder of LD_LIBR" in reason
    with pytest.raises(ConfigError, match=r"plugins was asked for, but the parser of tensorrt_rtx"):
        plugins.decide_plugins(TensorRTConfig(plugins=True))
    monkeypatch.setattr(plugins, "_loads", lambda library: library == "libtensorrt_rtx.so")
    assert plugins.decide_plugins(TensorRTConfig(plugins=None))[0].plugins
    plugins.load_plugins()
    assert registry.loaded == [str(library)]


def test_the_library_is_loaded_once(monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    registry = install(monkeypatch, "tensorrt")
    for _ in range(2):
        plugins.load_plugins()
    assert registry.loaded == [str(library)]


def test_a_library_without_all_plugins_is_refused(
    monkeypatch: pytest.MonkeyPatch, library: Path
) -> None:
    install(monkeypatch, "tensorrt", PLUGINS[:1])
    with pytest.raises(ConfigError, match=r"no plugin KeyedSample, TreeAccept, Paged.* \(its log"):
        plugins.load_plugins()
