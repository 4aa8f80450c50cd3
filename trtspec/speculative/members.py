"""How messages refer to one of several methods that draft together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.config.decoding import DecodingConfig
from trtspec.errors import TrtspecError


def member_label(index: int, method: str | None) -> str:
    """The one with this index among ``drafters``."""
    return f"drafters[{index}]" + (f" ({method})" if method else "")


@contextmanager
def naming(config: DecodingConfig, member: DecodingConfig) -> Iterator[None]:
    """A context in which errors say which of several `DecodingConfig.members` they concern."""
    try:
        yield
    except TrtspecError as error:
        if config.members == (member,):
            raise
        label = member_label(config.members.index(member), member.method)
        raise type(error)(f"{label}: {error}") from error
