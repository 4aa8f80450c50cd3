"""Fields that clients of neighbouring servers may send but that are not offered here.

A value that asks for something that is done anyway is accepted; any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.config.strict import Foreign, nearest
from trtspec.llmapi.chat import PART_REMAINS

_FUNCTIONS = "write them as `tools` and `tool_choice`"
_BEAM = "beam search is not offered; use `n`"
_AUDIO = "only text is offered"
_STORE = "nothing is stored"
_PROCESSOR = "user code inside the sampler is not offered"


def _any_key(value: Any, given: Mapping[str, Any]) -> bool:
    """Any text, or none: prefixes are shared without it."""
    return value is None or isinstance(value, str)


_PROMPT = "write echo=true and `logprobs` to /v1/completions"

_SAMPLING: dict[str, Foreign] = {
    "use_beam_search": Foreign(_BEAM),
    "length_penalty": Foreign(_BEAM, (None, 1, 1.0)),
    "prompt_logprobs": Foreign(_PROMPT, (None,)),
    "logits_processors": Foreign(_PROCESSOR, (None, [])),
    "allowed_token_ids": Foreign("give `logit_bias` or `bad_words` instead"),
    "truncate_prompt_tokens": Foreign("shorten the prompt before the call"),
    "spaces_between_special_tokens": Foreign("the tokenizer decides", (None, True)),
    "add_special_tokens": Foreign("the tokenizer decides; pass token ids to leave them out"),
    "request_id": Foreign("send it as the header X-Request-Id"),
    "return_tokens_as_token_ids": Foreign("tokens are returned as text"),
    "kv_transfer_params": Foreign("caches are not transferred"),
    "mm_processor_kwargs": Foreign(_AUDIO),
    "prompt_cache_key": Foreign("it must be text", _any_key),
    "cache_salt": Foreign("equal prefixes are always shared"),
}
COMPLETION: Mapping[str, Foreign] = _SAMPLING | {
    "best_of": Foreign(
        "only best_of == n is offered; all n sequences are returned",
        lambda value, given: value is None or value == (given.get("n") or 1),
    ),
    "suffix": Foreign("text is only continued, not filled in", (None,)),
    "prompt_embeds": Foreign("a prompt is text or token ids"),
}
CHAT: Mapping[str, Foreign] = _SAMPLING | {
    "functions": Foreign(_FUNCTIONS, (None, [])),
    "function_call": Foreign(_FUNCTIONS, (None, "none")),
    "audio": Foreign(_AUDIO, (None,)),
    "modalities": Foreign(_AUDIO, (None, ["text"])),
    "prediction": Foreign("predicted outputs are not offered; speculate with ngram", (None,)),
    "reasoning_effort": Foreign("give the template's own switch in `chat_template_kwargs`"),
    "verbosity": Foreign("it is a matter of the prompt", (None,)),
    "web_search_options": Foreign("nothing is looked up", (None,)),
    "store": Foreign(_STORE, (None, False)),
    "metadata": Foreign(_STORE, (None, {})),
    "service_tier": Foreign("there is one tier", (None, "auto", "default")),
    "prompt_cache_retention": Foreign("the server decides", (None,)),
    "prompt_cache_options": Foreign("the server decides", (None, {})),
    "moderation": Foreign("nothing is moderated", (None,)),
    "chat_template": Foreign("the template is the checkpoint's own, never a request's", (None,)),
    "documents": Foreign("write them into the messages", (None, [])),
    "echo": Foreign("outputs never repeat the prompt"),
    "best_of": COMPLETION["best_of"],
}
MESSAGE: Mapping[str, Foreign] = {
    "function_call": Foreign(_FUNCTIONS, (None,)),
    "refusal": Foreign("a refusal is no part of a conversation here", (None,)),
    "audio": Foreign(_AUDIO, (None,)),
    "annotations": Foreign("they are no part of a conversation here", (None, [])),
}
PART: Mapping[str, Foreign] = dict.fromkeys(
    PART_REMAINS, Foreign("they are no part of a conversation here", (None, []))
)
_NOT_STORED = "nothing is stored; give the whole conversation as `input`"
RESPONSE: Mapping[str, Foreign] = {
    "previous_response_id": Foreign(_NOT_STORED, (None,)),
    "conversation": Foreign(_NOT_STORED, (None,)),
    "store": Foreign(_STORE, (None, False)),
    "background": Foreign(_STORE, (None, False)),
    "prompt": Foreign(_STORE, (None,)),
    "context_management": Foreign("shorten the input before the call", (None, [])),
    "include": Foreign("the answer has all that there is", (None, [])),
    "truncation": Foreign("shorten the input before the call", (None, "disabled")),
    "reasoning": Foreign(
        "give the template's own switch in `chat_template_kwargs`",
        (None, {}, {"effort": None}, {"effort": None, "summary": None}),
    ),
    "max_tool_calls": Foreign("the tools are the client's", (None,)),
    "top_logprobs": Foreign("log probabilities are returned by chats", (None, 0)),
    "stream_options": Foreign(
        "the last event has the usage, and events are not padded",
        (None, {}, {"include_obfuscation": False}),
    ),
    **{
        name: CHAT[name]
        for name in (
            "verbosity",
            "service_tier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "moderation",
        )
    },
}
RESPONSE_ITEM: Mapping[str, Foreign] = {
    "encrypted_content": Foreign("reasoning is plain text here", (None,)),
    "namespace": Foreign("functions have plain names here", (None,)),
    "async": Foreign("calls are the client's", (None, False)),
    "caller": Foreign("calls are the client's", (None,)),
    "phase": Foreign("it is no part of a conversation here", (None,)),
}
TOKENIZE: Mapping[str, Foreign] = {
    name: CHAT[name] for name in ("chat_template", "mm_processor_kwargs")
}
STREAM_OPTIONS: Mapping[str, Foreign] = {
    "include_obfuscation": Foreign("chunks are not padded"),
}


def without_unsupported(data: Any, known: Mapping[str, Any], foreign: Mapping[str, Foreign]) -> Any:
    """`data` without foreign fields that ask for nothing; anything but a mapping is returned as it
    is.

    Raises:
        ValueError: a foreign field asks for something, or a field is unknown; it is named.
    """
    if not isinstance(data, Mapping):
        return data
    kept = {}
    for key, value in data.items():
        if key in known:
            kept[key] = value
        elif key not in foreign:
            shown = key if len(key) <= 64 else key[:64] + "..."
            # pydantic cannot pass on a message with half a character (a lone surrogate) in it.
            shown = shown.encode(errors="backslashreplace").decode()
            raise ValueError(f"unknown field `{shown}`{nearest(shown, [*known, *foreign])}")
        elif not foreign[key].allows(value, data):
            raise ValueError(f"`{key}` is refused: {foreign[key].reason}")
    return kept
