"""Brings the contents of a conversation into the form that its chat template reads: text or
parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from trtspec.errors import RequestError

ContentForm = Literal["text", "parts"]
Part = Mapping[str, str]
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of text parts in OpenAI's chat and responses APIs."""
PART_REMAINS = ("annotations", "logprobs")
"""Fields that the responses API adds to the text of an answer; empty here."""


class _Generation(Extension):
    """Transformers' ``{% generation %}`` block, which marks the assistant's text."""

    tags = {"generation"}  # noqa: RUF012  read by jinja2 off the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def parsed(template: str) -> nodes.Template:
    """The syntax tree of a chat template; raises jinja2's TemplateError if it does not parse."""
    return Environment(extensions=["jinja2.ext.loopcontrols", _Generation]).parse(template)


@lru_cache
def content_form(template: str) -> ContentForm:
    """Whether a chat template reads contents as "parts" or as "text": "parts" if it loops over a
    message's content anywhere, also under another name or as a macro argument. A template that
    cannot be parsed counts as "text"; rendering it reports the error."""
    try:
        tree = parsed(template)
    except TemplateError:
        return "text"
    names = _names_of_content(tree)
    loops = tree.find_all(nodes.For)
    return "parts" if any(_is_content(loop.iter, names) for loop in loops) else "text"


def in_form(
    messages: Sequence[Mapping[str, Any]], form: ContentForm, where: str = "messages"
) -> list[Mapping[str, Any]]:
    """The messages with every content in ``form``. Parts are joined by newlines; a text becomes a
    single part. A message without content is left as it is, since the template writes its tool
    calls. A null content of an assistant message, which clients copy from an answer, becomes an
    empty text.

    Raises:
        RequestError: a content is not text; the error names its place, starting with ``where``.
    """
    turns: list[Mapping[str, Any]] = []
    for index, message in enumerate(messages):
        content, place = message.get("content"), f"{where}[{index}].content"
        if content is None and message.get("tool_calls"):
            turns.append(message)
            continue
        if "content" not in message:
            raise RequestError(f"{place} is missing; only an assistant's tool calls may lack it")
        if content is None and message.get("role") == "assistant":
            content = ""
        parts = _parts(content, place)
        if form == "parts":
            turns.append({**message, "content": parts})
        else:
            turns.append({**message, "content": "\n".join(part["text"] for part in parts)})
    return turns


def written_as_a_list(messages: Sequence[Mapping[str, Any]], text: str) -> Mapping[str, Any] | None:
    """The first message whose list of parts appears in ``text`` as Python prints lists, if any: a
    template may loop over the contents of one role but not of another."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and str(content) in text:
            return message
    return None


def _parts(content: Any, place: str) -> list[Part]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise RequestError(
            f"{place} is {type(content).__name__} {content!r:.60}; it must be text, or a list of "
            '{"type": "text", "text": ...}'
        )
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, place: str) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind not in TEXT_PARTS:
        raise RequestError(f"{place} is a part of type {kind[:32]!r}; only text is offered")
    is_text = kind in TEXT_PARTS and _said(part) == {"type", "text"}
    if not (is_text and isinstance(part["text"], str)):
        raise RequestError(
            f'{place} is {part!r:.60}; a part is {{"type": "text", "text": ...}} with a string'
        )
    return {"type": "text", "text": part["text"]}


def _said(part: Mapping[str, Any]) -> set[str]:
    """The keys of a part, except empty leftovers of an answer."""
    return {
        key for key, value in part.items() if key not in PART_REMAINS or value not in (None, [])
    }


def _names_of_content(tree: nodes.Template) -> set[str]:
    """Names that a template gives to a message's content, by ``set`` or as a macro parameter."""
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    names: set[str] = set()
    while True:
        found = set(names)
        for assignment in tree.find_all(nodes.Assign):
            target = assignment.target
            if isinstance(target, nodes.Name) and _is_content(assignment.node, names):
                found.add(target.name)
        for call in tree.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if macro is not None:
                given = [(p.name, a) for p, a in zip(macro.args, call.args, strict=False)]
                given += [(keyword.key, keyword.value) for keyword in call.kwargs]
                found |= {name for name, value in given if _is_content(value, names)}
        if found == names:
            return names
        names = found


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether an expression is a message's content, or some of its parts."""
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node, names)
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Filter):
        return _is_content(node.node, names)
    if isinstance(node, nodes.CondExpr):
        return _is_content(node.expr1, names) or _is_content(node.expr2, names)
    if isinstance(node, nodes.Or):
        return _is_content(node.left, names) or _is_content(node.right, names)
    return False
