"""Checks the messages of a conversation, for `LLM.chat` and for the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.config.strict import nearest
from trtspec.errors import RequestError
from trtspec.llmapi.chat_options import check_plain
from trtspec.llmapi.chat_template import ChatTemplate

# OpenAI's, but for "tool", which only templates for tools know.
ROLES = ("system", "developer", "user", "assistant")
_TOOL = "tool"
_FIELDS = ("role", "content", "name")
_REASONING = ("reasoning_content", "reasoning", "thinking")
_SPELLINGS = (*_FIELDS, "tool_calls", "tool_call_id", *_REASONING)


def check_conversation(
    messages: Any, template: ChatTemplate, where: str = "messages"
) -> list[dict[str, Any]]:
    """The messages without empty fields that the template never reads.

    A message has a ``role`` and a ``content`` (checked when it is brought into the template's
    form), and may have a ``name`` and whatever else the template reads. Roles are `ROLES` and those
    that the template mentions.

    Raises:
        RequestError: anything else; the error names its place, starting with ``where``.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(
            f"{where}: a conversation is a list of messages, got {type(messages).__name__} "
            f"{messages!r:.60}"
        )
    if not messages:
        raise RequestError(f"{where} is empty; a conversation has at least 1 message")
    return [_checked(message, template, f"{where}[{i}]") for i, message in enumerate(messages)]


def in_known_roles(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Replace `developer`, OpenAI's newer word for `system`, where the template does not know it
    and would drop the message."""
    if "developer" in text:
        return list(messages)
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]


def uncommon_role(messages: Sequence[Mapping[str, Any]], where: str = "messages") -> str:
    """The first role that only the template knows, with its place; empty if there is none."""
    for index, message in enumerate(messages):
        if message["role"] not in ROLES:
            return f"{where}[{index}].role is {message['role'][:32]!r}; "
    return ""


def _checked(message: Any, template: ChatTemplate, place: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(
            f'{place} is {type(message).__name__} {message!r:.60}; a message is {{"role": ..., '
            '"content": ...}'
        )
    kept = {}
    for key, value in message.items():
        if key in _FIELDS or (key == "tool_call_id" and message.get("role") == _TOOL):
            if key in ("name", "tool_call_id") and not isinstance(value, (str, type(None))):
                raise RequestError(
                    f"{place}.{key} is {type(value).__name__} {value!r:.60}; it must be text"
                )
        elif value is None or (value == [] and key not in template.words):
            continue
        elif key in _REASONING:
            # Many templates leave the reasoning of earlier answers out, as their models expect.
            key = next((k for k in (key, *_REASONING) if k in template.words), None)
            if key is None:
                continue
            check_plain(value, f"{place}.{key}")
        elif not isinstance(key, str) or key not in template.words:
            hint = "" if key in _SPELLINGS else nearest(str(key)[:64], _SPELLINGS)
            raise RequestError(
                f"{place} has the field `{str(key)[:64]}`, which the chat template never "
                f"reads{hint}"
            )
        else:
            check_plain(value, f"{place}.{key}")
        kept[key] = value
    role, calls = _role(message.get("role"), template, f"{place}.role"), message.get("tool_calls")
    if calls and role != "assistant":
        raise RequestError(f"{place}.tool_calls: only an assistant calls tools, not {role[:32]!r}")
    if calls is not None and (isinstance(calls, str) or not isinstance(calls, Sequence)):
        raise RequestError(
            f"{place}.tool_calls is {type(calls).__name__} {calls!r:.60}; it must be a list"
        )
    return kept


def _role(role: Any, template: ChatTemplate, place: str) -> str:
    if role is None:
        raise RequestError(f"{place} is missing; it is one of {', '.join(ROLES)}")
    if not isinstance(role, str):
        raise RequestError(f"{place} is {type(role).__name__} {role!r:.60}; it must be text")
    if role in ROLES or role in template.roles or (role == _TOOL and template.knows_tools):
        return role
    if role == _TOOL:
        raise RequestError(
            f"{place} is {role!r}, but the chat template knows no tools; give another "
            "chat_template, or write what the tool said into a user's message"
        )
    raise RequestError(
        f"{place} is {role[:32]!r}{nearest(role[:32], ROLES)}; it must be one of "
        f"{', '.join(ROLES)}, or another that the chat template names"
    )
