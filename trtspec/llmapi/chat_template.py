"""ChatTemplate: which chat template applies to a conversation, and what it reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta, nodes

from trtspec.errors import RequestError
from trtspec.llmapi.chat import ContentForm, content_form, parsed

_SYNTAX = ("{{", "{%", "{#")
_OWN_NAME = "default"  # of the template that is applied where none is named


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template and what it reads.

    form: of contents, "text" or "parts". variables: names that it expects from outside. words:
    attributes and keys that it reads, and texts that it compares with. roles: those of the words
    that may be a role.
    """

    text: str
    form: ContentForm
    variables: frozenset[str]
    words: frozenset[str]
    roles: frozenset[str]

    @property
    def knows_tools(self) -> bool:
        return "tools" in self.variables or "tool_calls" in self.words or "tool" in self.roles


@lru_cache(maxsize=32)
def read_template(text: str) -> ChatTemplate:
    """Parse a template.

    Raises:
        RequestError: it cannot be parsed.
    """
    try:
        # A tree of its own: the search for variables folds lists of texts away.
        variables = frozenset(meta.find_undeclared_variables(parsed(text)))
    except TemplateError as error:
        raise RequestError(
            f"the chat template refused the conversation: it cannot be parsed: {error}"
        ) from error
    tree = parsed(text)
    texts = [node for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    keys = {id(node.arg) for node in tree.find_all(nodes.Getitem)}
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    words = attributes | {node.value for node in texts}
    roles = {node.value for node in texts if id(node) not in keys}
    return ChatTemplate(text, content_form(text), variables, frozenset(words), frozenset(roles))


def choose_template(tokenizer: Any, asked: str | Path | None, has_tools: bool) -> ChatTemplate:
    """The template to apply. ``chat_template`` is the name of one of the tokenizer's templates, a
    file, or the template itself; without it, the tokenizer's default applies.

    Raises:
        RequestError: there is none, the name or path is unknown, or it cannot be parsed.
    """
    own = getattr(tokenizer, "chat_template", None)
    named = own if isinstance(own, dict) else {_OWN_NAME: own} if own else {}
    if asked is None:
        if not named:
            raise RequestError(
                "the tokenizer has no chat template; format the conversation yourself and call "
                "generate()"
            )
        usual = "tool_use" if has_tools and "tool_use" in named else _OWN_NAME
        if usual not in named:
            raise RequestError(
                f"chat_template names none of several, and there is no default; {_offered(named)}"
            )
        return read_template(str(named[usual]))
    if isinstance(asked, str):
        if asked in named:
            return read_template(str(named[asked]))
        if _is_template(asked):
            return read_template(asked)
    if not os.path.isfile(asked):  # False too for what cannot be a path; Path.is_file() may raise
        raise RequestError(
            f"chat_template={str(asked)[:80]!r} is no name of a template, no file, and no template "
            f"itself (it has no {{{{ }}}} or {{% %}}); {_offered(named)}"
        )
    return template_in_file(asked)


def template_in_file(path: str | Path) -> ChatTemplate:
    """The template in a file.

    Raises:
        RequestError: it cannot be read, or holds none.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"chat_template {str(path)!r} cannot be read: {error}") from error
    if not _is_template(text):
        raise RequestError(f"chat_template: the file {str(path)!r} holds no template")
    return read_template(text)


def _is_template(text: str) -> bool:
    return any(mark in text for mark in _SYNTAX)


def _offered(named: dict[str, Any]) -> str:
    return f"the tokenizer has: {', '.join(sorted(named))}" if named else "the tokenizer has none"
