"""``python -m trtspec.commands.spellings``: the keys of other engines, and what becomes of each.

Prints the page trtspec/speculative/COMING_FROM.md, made of the key rules of every method.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from trtspec.config.speculative_keys import METHODS_ELSEWHERE
from trtspec.config.strict import Foreign, key_rules
from trtspec.llmapi.options import LLMConfig
from trtspec.speculative.base import DraftMethod
from trtspec.speculative.registry import methods

_HEAD = """\
# Coming from vLLM, TensorRT-LLM and SGLang

<!-- Written by `python -m trtspec.commands.spellings`: run it again instead of editing this. -->

`speculative_config` of `LLM`, and the option of that name of the programs, take the keys of these
engines as they are. A key either means an option here, or asks for what is done anyway and is
dropped, or is refused with its reason. A key that no table below holds is unknown and refused, with
the nearest known one. Options of their engines are taken by `LLM` in the same way, and as flags by
`trtspec-serve` and `trtspec-build` (`--tp_size 1`, `--mem-fraction-static 0.8`); `_` and `-` do not
count there. Keys of the speculation may stand among them (`LLM(speculative_algorithm=...)`,
`--speculative-num-steps 3`).
"""
_METHODS = """
## Names of methods

A method is named by `method` (vLLM), `decoding_type` (TensorRT-LLM) or `speculative_algorithm`
(SGLang). Case, `_` and `-` do not count. A config with a draft's checkpoint alone means
`draft_model`. The method `none` is no speculation.
"""
_ELSEWHERE = "Known in the field, and refused as not available here: "
_ALIASES = """
## Keys that mean an option here
"""
_OWN = """
## Options by their own names
"""
_FOREIGN = """
## Keys that are dropped or refused

A key is dropped where it has an accepted value, or is null. Any other value is refused, for the
reason in its row. A key that is "never" accepted is refused whatever its value. `parallel_drafting`
is looked at before, see the names above.
"""

_ENGINE = """
## Options of the engine

| their option | option of `LLM` here |
|---|---|
"""
_ENGINE_FOREIGN = "\nDropped or refused, by the same rule:\n"

Rows = Iterable[Sequence[str]]


def page() -> str:
    """The page as Markdown."""
    table = methods()
    return "".join(
        (
            _HEAD,
            _METHODS,
            _table(("their name", "method here"), _names(table)),
            "\n" + textwrap.fill(f"{_ELSEWHERE}{_listed(METHODS_ELSEWHERE)}.", 100) + "\n",
            _ALIASES,
            _table(("their key", "option here", "methods"), _aliases(table)),
            _OWN,
            _table(("option", "methods"), _options(table)),
            _FOREIGN,
            _table(("their keys", "accepted", "otherwise refused", "methods"), _foreign(table)),
            _ENGINE,
            *(
                f"| `{key}` | `{own}` |\n"
                for key, own in sorted(key_rules(LLMConfig).aliases.items())
            ),
            _ENGINE_FOREIGN,
            _table(("their options", "accepted", "otherwise refused"), _of_engine()),
        )
    )


def _names(table: Mapping[str, DraftMethod]) -> Iterator[Sequence[str]]:
    for name, method in table.items():
        also = _listed(method.spellings)
        if method.ending is not None:
            also += f", all that ends in `{method.ending}`"
        if method.parallel_of is not None:
            also += f", `{method.parallel_of.method}` with `parallel_drafting`"
        if also:
            yield also.removeprefix(", "), f"`{name}`"


def _aliases(table: Mapping[str, DraftMethod]) -> Iterator[Sequence[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, method in table.items():
        for key, option in key_rules(method.options).aliases.items():
            found[key, option].append(name)
    for (key, option), names in sorted(found.items()):
        yield f"`{key}`", f"`{option}`", _methods(names, table)


def _options(table: Mapping[str, DraftMethod]) -> Iterator[Sequence[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, method in table.items():
        for field in fields(method.options):
            found[field.name].append(name)
    for option, names in sorted(found.items()):
        yield f"`{option}`", _methods(names, table)


def _foreign(table: Mapping[str, DraftMethod]) -> Iterator[Sequence[str]]:
    """One row for all keys with the same accepted values, reason and methods."""
    by_key: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, method in table.items():
        rules = key_rules(method.options)
        own = {field.name for field in fields(method.options)}
        for key, rule in rules.foreign.items():
            if rules.aliases.get(key, key) not in own:  # else it is an option of this method
                by_key[key, _accepted(rule), rule.reason].append(name)
    by_fate: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (key, accepted, reason), names in by_key.items():
        by_fate[accepted, reason, _methods(names, table)].append(key)
    for (accepted, reason, takers), keys in sorted(by_fate.items(), key=lambda row: sorted(row[1])):
        yield _listed(keys), accepted, reason, takers


def _of_engine() -> Iterator[Sequence[str]]:
    """One row for all engine options with the same accepted values and reason."""
    by_fate: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, rule in key_rules(LLMConfig).foreign.items():
        by_fate[_accepted(rule), rule.reason].append(key)
    for (accepted, reason), keys in sorted(by_fate.items(), key=lambda row: sorted(row[1])):
        yield _listed(keys), accepted, reason


def _accepted(rule: Foreign) -> str:
    if callable(rule.accepts):
        return inspect.getdoc(rule.accepts) or "some values, beside some other options"
    values = [f"`{json.dumps(value)}`" for value in rule.accepts if value is not None]
    return ", ".join(values) if values else "-" if rule.accepts else "never"


def _methods(names: Sequence[str], table: Mapping[str, DraftMethod]) -> str:
    rest = [name for name in table if name not in names]
    if not rest:
        return "all"
    return _listed(names) if len(names) <= len(rest) else f"all but {_listed(rest)}"


def _listed(words: Collection[str]) -> str:
    return ", ".join(f"`{word}`" for word in sorted(words))


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return "".join(("\n", lines[0], "|---" * len(head) + "|\n", *lines[1:]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page and return 0."""
    program = "python -m trtspec.commands.spellings"
    argparse.ArgumentParser(prog=program, description=__doc__).parse_args(arguments)
    print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
