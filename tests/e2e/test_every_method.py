"""The tables of tests that hold for all methods have an entry of each."""

from __future__ import annotations

from trtspec.speculative.registry import method_names

from .every_method import CALLED, METHODS, VARIANTS


def test_every_registered_method_has_an_entry() -> None:
    """Named after the method, or with words behind its name; a method that `CALLED` lists has one
    that is called otherwise."""
    named = {name.split()[0].rstrip(",") for name in (*METHODS, *VARIANTS)}
    missing = set(method_names()) - {CALLED.get(name, name) for name in named}
    assert not missing, f"give {sorted(missing)} an entry in tests/e2e/every_method.py"
