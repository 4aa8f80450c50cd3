"""Strict configs: keys, types, aliases and foreign keys."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from trtspec.config.strict import Foreign, from_dict, strict_config, to_dict
from trtspec.errors import ConfigError, RequestError


@dataclass(frozen=True)
class Inner:
    width: int = 1


@strict_config(
    aliases={"breadth": "size"},
    foreign={"beams": Foreign("no beams here", (None, 1))},
)
@dataclass(frozen=True)
class Outer:
    size: int
    rate: float = 0.5
    name: str | None = None
    flags: tuple[bool, ...] = ()
    pair: tuple[int, str] = (1, "a")
    words: tuple[str | tuple[int, ...], ...] = ()
    inner: Inner = field(default_factory=Inner)
    table: dict[str, float] = field(default_factory=dict)


def test_values_are_taken_and_kept() -> None:
    data = {
        "size": np.int64(3),
        "rate": 1,
        "flags": [True, False],
        "pair": [2, "b"],
        "words": ["x", [1, 2]],
        "inner": {"width": 4},
        "table": {"a": 1},
    }
    config = from_dict(Outer, data)
    assert config == Outer(3, 1.0, None, (True, False), (2, "b"), ("x", (1, 2)), Inner(4), {"a": 1})
    assert type(config.size) is int and type(config.rate) is float
    assert from_dict(Outer, to_dict(config)) == config
    assert replace(config, size=5).size == 5
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown option `szie`; did you mean `size`\?"):
        Outer(szie=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown option `zzz`"):
        from_dict(Outer, {"size": 1, "zzz": 2})
    with pytest.raises(ConfigError, match="unknown option `widht`"):
        from_dict(Outer, {"size": 1, "inner": {"widht": 2}})
    with pytest.raises(ConfigError, match="unknown option `other`"):
        from_dict(Inner, {"other": 2})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"size": True}, "`size` must be int, got bool True"),
        ({"size": 1.0}, "`size` must be int, got float 1.0"),
        ({"size": "1"}, "`size` must be int, got str '1'"),
        ({"size": None}, "`size` must be int, got NoneType None"),
        ({"size": 1, "rate": "fast"}, "`rate` must be float"),
        ({"size": 1, "name": 3}, "`name` must be str or None, got int 3"),
        ({"size": 1, "flags": [1]}, r"`flags`\[0\] must be bool"),
        ({"size": 1, "flags": "yes"}, "`flags` must be tuple"),
        ({"size": 1, "pair": [1]}, "`pair` must be tuple"),
        ({"size": 1, "words": [[1, "a"]]}, r"`words`\[0\]\[1\] must be int"),
        ({"size": 1, "table": {"a": "b"}}, r"`table`\['a'\] must be float"),
        ({"size": 1, "inner": 3}, "`inner` must be Inner"),
        ({}, r"missing option `size` \(also known as breadth\)"),
        ({1: 2}, "option names must be strings"),
        ([], "expected a mapping"),
    ],
)
def test_wrong_types(data: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(Outer, data)  # type: ignore[arg-type]


def test_aliases() -> None:
    assert Outer(breadth=3).size == 3  # type: ignore[call-arg]
    assert Outer(size=3, breadth=3).size == 3  # type: ignore[call-arg]
    assert Outer(size=3, breadth=None).size == 3  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="`size`=3 and `breadth`=4 mean the same option"):
        Outer(size=3, breadth=4)  # type: ignore[call-arg]


def test_foreign_keys() -> None:
    assert Outer(1, beams=1) == Outer(1, beams=None) == Outer(1)  # type: ignore[call-arg]
    for value in (2, True, 1.0):  # 1 means 1, not True
        with pytest.raises(ConfigError, match=r"`beams`=.* is refused: no beams here"):
            Outer(1, beams=value)  # type: ignore[call-arg]


def test_where_and_error_class() -> None:
    @strict_config(error=RequestError, none_means_default=True)
    @dataclass(frozen=True)
    class Thing:
        count: int = 2

    assert Thing(None).count == 2  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^config.json: Thing: unknown option"):
        from_dict(Thing, {"cuont": 1}, "config.json")
    with pytest.raises(RequestError, match="takes 1 arguments, got 2"):
        Thing(1, 2)  # type: ignore[call-arg]
