"""Strict configs: frozen dataclasses that check their keys and types, wherever these come from.

`from_dict` builds any dataclass; the class decorator `strict_config` gives the constructor the same
checks, so that a keyword argument and a key of a JSON file fail with the same message.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, TypeVar

import torch

from trtspec.errors import ConfigError, TrtspecError

T = TypeVar("T")

_NAMED_BY_TORCH = (torch.dtype, torch.device)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A key of a neighbouring engine that is not a field here.

    It is accepted and dropped if its value asks for something that is done anyway; any other value
    is refused with `reason`. `accepts` holds the accepted values, or is a function of (value, all
    given keys) whose docstring says what it accepts.
    """

    reason: str
    accepts: tuple[Any, ...] | Callable[[Any, Mapping[str, Any]], bool] = (None, False)

    def allows(self, value: Any, given: Mapping[str, Any]) -> bool:
        if callable(self.accepts):
            return self.accepts(value, given)
        return any(type(value) is type(a) and value == a for a in self.accepts)


@dataclasses.dataclass(frozen=True)
class KeyRules:
    """What a strict class accepts beyond its own field names."""

    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    foreign: Mapping[str, Foreign] = dataclasses.field(default_factory=dict)
    none_means_default: bool = False
    error: type[TrtspecError] = ConfigError


_RULES_ATTRIBUTE = "__trtspec_key_rules__"


def key_rules(cls: type) -> KeyRules:
    """The rules given to `strict_config`, or the default ones (own fields only)."""
    rules = cls.__dict__.get(_RULES_ATTRIBUTE)
    return rules if isinstance(rules, KeyRules) else KeyRules()


def strict_config(
    *,
    aliases: Mapping[str, str] | None = None,
    foreign: Mapping[str, Foreign] | None = None,
    none_means_default: bool = False,
    error: type[TrtspecError] = ConfigError,
) -> Callable[[type[T]], type[T]]:
    """Class decorator, placed above `@dataclass`: the constructor refuses unknown keys and wrong
    types with `error`, and knows `aliases` (foreign name -> field) and `foreign` keys. With
    `none_means_default`, None stands for the default of a field that cannot hold None."""

    def decorate(cls: type[T]) -> type[T]:
        rules = KeyRules(aliases or {}, foreign or {}, none_means_default, error)
        setattr(cls, _RULES_ATTRIBUTE, rules)
        plain_init: Callable[..., None] = cls.__init__

        @functools.wraps(plain_init)
        def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(self, **resolve_keys(cls, args, kwargs))

        cls.__init__ = checked_init  # type: ignore[method-assign]
        return cls

    return decorate


def from_dict(cls: type[T], data: Mapping[str, Any], where: str | None = None) -> T:
    """Build dataclass `cls` from a mapping. Unknown keys, missing keys and values of the wrong type
    raise ConfigError (or the error of the class); lists become tuples and nested mappings nested
    dataclasses where the field says so. `where` (such as a file) prefixes the message."""
    rules = key_rules(cls)
    if not isinstance(data, Mapping):
        raise rules.error(
            f"{where or cls.__name__}: expected a mapping of options, got {type(data).__name__}"
        )
    try:
        wrong = [k for k in data if not isinstance(k, str)]
        if wrong:
            raise rules.error(f"{cls.__name__}: option names must be strings, got {wrong[0]!r}")
        if _RULES_ATTRIBUTE in cls.__dict__:
            return cls(**data)
        return cls(**resolve_keys(cls, (), data))
    except TrtspecError as e:
        if where is None:
            raise
        raise type(e)(f"{where}: {e}") from e


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values: nested dataclasses become dicts, tuples become lists."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean `x`?', or the empty string."""
    close = [each for each in known if _resembles(name, each)]
    best = difflib.get_close_matches(name, close, n=1, cutoff=0.6)
    return f"; did you mean `{best[0]}`?" if best else ""


def _resembles(name: str, known: str) -> bool:
    """Whether one may be a misspelling of the other: apart from shared words they are alike, or one
    has nothing left. So `lora_config` does not suggest `quant_config`."""
    words, others = name.split("_"), known.split("_")
    own = "_".join(word for word in words if word not in others)
    theirs = "_".join(word for word in others if word not in words)
    return not own or not theirs or difflib.SequenceMatcher(None, own, theirs).ratio() >= 0.6


def resolve_keys(cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of dataclass `cls` by field name: aliases resolved, foreign keys
    checked, unknown ones refused, every value checked against its annotation."""
    rules, hints = key_rules(cls), _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if len(args) > len(fields):
        raise rules.error(f"{cls.__name__} takes {len(fields)} arguments, got {len(args)}")
    given: dict[str, Any] = dict(zip(fields, args, strict=False))
    spelled = {name: name for name in given}
    for key, value in kwargs.items():
        name = rules.aliases.get(key, key)
        if name in fields:
            if name in given and (value is None or given[name] is None):
                value = given[name] if value is None else value  # an unset alias says nothing
            elif name in given and given[name] != value:
                raise rules.error(
                    f"{cls.__name__}: `{spelled[name]}`={given[name]!r} and `{key}`={value!r} "
                    f"mean the same option; give one of them"
                )
            given[name], spelled[name] = value, key
        elif key in rules.foreign:
            rule = rules.foreign[key]
            if not rule.allows(value, kwargs):
                raise rules.error(f"{cls.__name__}: `{key}`={value!r} is refused: {rule.reason}")
        else:
            hint = nearest(key, [*fields, *rules.aliases, *rules.foreign])
            raise rules.error(
                f"{cls.__name__}: unknown option `{key}`{hint} (options: {', '.join(fields)})"
            )
    resolved = {}
    for name, value in given.items():
        if value is None and rules.none_means_default and not _admits_none(hints[name]):
            continue
        resolved[name] = check_value(
            f"{cls.__name__}: `{spelled[name]}`", value, hints[name], rules.error
        )
    missing = [n for n, f in fields.items() if n not in resolved and not _has_default(f)]
    if missing:
        others = [alias for alias, field in rules.aliases.items() if field == missing[0]]
        known_as = f" (also known as {', '.join(others)})" if others else ""
        raise rules.error(f"{cls.__name__}: missing option `{missing[0]}`{known_as}")
    return resolved


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _admits_none(hint: Any) -> bool:
    if _is_union(hint):
        return any(_admits_none(h) for h in typing.get_args(hint))
    return hint is type(None) or hint is Any


def _name(hint: Any) -> str:
    if _is_union(hint):
        return " or ".join(_name(h) for h in typing.get_args(hint))
    if hint is type(None):
        return "None"
    if typing.get_origin(hint) is None and isinstance(hint, type):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("collections.abc.", "")


def check_value(label: str, value: Any, hint: Any, error: type[TrtspecError] = ConfigError) -> Any:
    """`value` as the type `hint` wants it, or `error` prefixed with the label. Never loses
    information: an int may become a float, a list a tuple, and a torch dtype or device its name;
    nothing else changes."""
    refusal = error(f"{label} must be {_name(hint)}, got {type(value).__name__} {value!r:.80}")
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if _is_union(hint):
        failures = []
        for option in inner:
            try:
                return check_value(label, value, option, error)
            except TrtspecError as e:
                # Without its frames: they hold this list, and whoever asked, until a collection.
                failures.append((option, e.with_traceback(None)))
        # a list or mapping that fits one shape only deserves the precise message of that shape
        shaped = [e for o, e in failures if isinstance(value, _container_of(o))]
        raise shaped[0] if len(shaped) == 1 else refusal
    if hint is None or hint is type(None):
        if value is None:
            return None
    elif origin is typing.Literal:
        if any(type(value) is type(a) and value == a for a in inner):
            return value
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint is int:
        if not isinstance(value, bool) and isinstance(value, Integral):
            return int(value)
    elif hint is float:
        if not isinstance(value, bool) and isinstance(value, Real):
            return float(value)
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            if len(inner) == 2 and inner[1] is Ellipsis:
                kinds: Sequence[Any] = (inner[0],) * len(value)
            else:
                kinds = inner
            if len(kinds) == len(value):
                pairs = enumerate(zip(value, kinds, strict=True))
                return tuple(check_value(f"{label}[{i}]", v, k, error) for i, (v, k) in pairs)
    elif origin is not None and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            key_hint, value_hint = inner
            return {
                check_value(f"{label} key", k, key_hint, error): check_value(
                    f"{label}[{k!r}]", v, value_hint, error
                )
                for k, v in value.items()
            }
    elif isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if hint is str and type(value) in _NAMED_BY_TORCH:
            return str(value)
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            return from_dict(hint, value, label)
        if _has_kinds(hint) and isinstance(value, Mapping):
            return from_dict(_of_kind(label, hint, value, error), value, label)
    else:
        raise TypeError(f"{label}: strict configs do not know the annotation {hint!r}")
    raise refusal


def _has_kinds(hint: Any) -> bool:
    """Whether it stands for several dataclasses, told apart by `kind` (see `LayerPart`)."""
    return isinstance(hint, type) and hasattr(hint, "kinds")


def _of_kind(
    label: str, hint: Any, value: Mapping[str, Any], error: type[TrtspecError]
) -> type[Any]:
    kind, kinds = value.get("kind"), hint.kinds()
    if kind not in list(kinds):  # which may be anything
        raise error(f"{label} is of kind {kind!r:.80}; supported: {', '.join(kinds)}")
    found: type[Any] = kinds[kind]
    return found


def _container_of(hint: Any) -> tuple[type, ...]:
    origin = typing.get_origin(hint)
    if origin is tuple:
        return (list, tuple)
    is_mapping = isinstance(origin, type) and issubclass(origin, Mapping)
    if is_mapping or dataclasses.is_dataclass(hint) or _has_kinds(hint):
        return (Mapping,)
    return ()
