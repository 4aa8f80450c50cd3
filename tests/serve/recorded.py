"""Answers as models of each family write them, and what a client is to see of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"enum": ["C", "F"]},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: dict[str, dict[str, Any]] = {"weather": WEATHER, "now": {"type": "object", "properties": {}}}
PARIS = '{"city": "Paris, <b>\\"é\\"</b>", "days": 2}'
OSLO = '{"city": "Osló", "where": {"x": [1, "}"]}}'


@dataclass(frozen=True)
class Recorded:
    """calls: name and arguments, these as JSON says it (a text, where it is none)."""

    parser: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    reasoning: str = ""


def _json(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def _deepseek(words: str) -> str:
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


BOTH = (("weather", json.loads(PARIS)), ("weather", json.loads(OSLO)))
NOW = (("now", {}),)
PLAIN = "A <b>bold</b> word [x], {y} and <tool_box>.\n\n"
_CALL, _SEP, _END = (_deepseek(f"tool {w}") for w in ("call begin", "sep", "call end"))
_ALL = tuple(_deepseek(f"tool calls {w}") for w in ("begin", "end"))

RECORDED = (
    *(
        Recorded(name, PLAIN, content=PLAIN)
        for name in ("hermes", "qwen3_coder", "glm45", "deepseek_v31", "mistral", "llama3_json")
    ),
    Recorded("openai", PLAIN, content=PLAIN),
    Recorded(
        "hermes",
        f"Let me see.\n\n<tool_call>\n{_json('weather', PARIS)}\n</tool_call>\n"
        f"<tool_call>{_json('weather', OSLO)}</tool_call>",
        content="Let me see.",
        calls=BOTH,
    ),
    Recorded(
        "hermes",
        f'<tool_call>\n{{"arguments": {PARIS}, "name": "weather"}}\n</tool_call>',
        calls=BOTH[:1],
    ),
    Recorded(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call> Done.',
        content="Done.",
        calls=(("weather", {"city": "</tool_call>"}),),
    ),
    Recorded(
        "hermes",
        "<tool_call>no call</tool_call>",
        content="<tool_call>no call</tool_call>",
    ),
    Recorded(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "Par',
        calls=(("weather", '{"city": "Par'),),
    ),
    Recorded(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": 1 </tool_call>',
        calls=(("weather", '{"city": 1'),),
    ),
    Recorded("hermes", f"<tool_call>{_json('now', '{}')}", calls=NOW),
    Recorded(
        "qwen3_coder",
        'I look it up.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis, <b>"é"</b>\n'
        "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        content="I look it up.",
        calls=(BOTH[0], *NOW),
    ),
    Recorded(
        "qwen3_coder",
        "<function=weather>\n<parameter=city>\n\nlines\n\n</parameter>\n<parameter=where>\n"
        '{"x": 1.5}\n</parameter>\n<parameter=other>\nTrue\n</parameter>\n</function>',
        calls=(("weather", {"city": "\nlines\n", "where": {"x": 1.5}, "other": True}),),
    ),
    Recorded(
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
        calls=(("weather", '{"city": "Par'),),
    ),
    Recorded(
        "glm45",
        '\nOne moment.<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris, <b>"é"</b>'
        "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n"
        "<tool_call>now</tool_call>",
        content="\nOne moment.",
        calls=(BOTH[0], *NOW),
    ),
    Recorded(
        "glm45",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>12</arg_value><arg_key>units</arg_key>"
        "<arg_value>C</arg_value><arg_key>x</arg_key><arg_value>[1, NaN]</arg_value></tool_call>",
        calls=(("weather", {"city": "12", "units": "C", "x": "[1, NaN]"}),),
    ),
    Recorded("glm45", "<tool_call>a word</tool_call>", content="<tool_call>a word</tool_call>"),
    Recorded(
        "llama3_json",
        f"{_json('weather', PARIS, 'parameters')}; {_json('weather', OSLO, 'parameters')}",
        calls=BOTH,
    ),
    Recorded(
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}',
        calls=NOW,
    ),
    Recorded("llama3_json", '{"name": "Ann"}', content='{"name": "Ann"}'),
    Recorded("llama3_json", '{"names": ["Ann"]}', content='{"names": ["Ann"]}'),
    Recorded(
        "mistral",
        f"I see.[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]weather[CALL_ID]a1B2[ARGS]{OSLO}",
        content="I see.",
        calls=BOTH,
    ),
    Recorded(
        "mistral",
        f"[TOOL_CALLS] [{_json('weather', PARIS)}, {_json('weather', OSLO)}]",
        calls=BOTH,
    ),
    Recorded("mistral", "[TOOL_CALLS]now{}", calls=NOW),
    Recorded(
        "deepseek_v31",
        f"So be it.\n\n{_ALL[0]}{_CALL}weather{_SEP}{PARIS}{_END}{_CALL}weather{_SEP}{OSLO}{_END}"
        f"{_ALL[1]}",
        content="So be it.",
        calls=BOTH,
    ),
    Recorded(
        "deepseek_v3",
        f"{_ALL[0]}{_CALL}function{_SEP}weather\n```json\n{PARIS}\n```{_END}\n"
        f"{_CALL}function{_SEP}weather\n```json\n{OSLO}\n```{_END}{_ALL[1]}",
        calls=BOTH,
    ),
    Recorded(
        "openai",
        "<|channel|>analysis<|message|>They ask for weather.<|end|><|start|>assistant<|channel|>"
        f"commentary to=functions.weather <|constrain|>json<|message|>{PARIS}<|call|>",
        calls=BOTH[:1],
        reasoning="They ask for weather.",
    ),
    Recorded(
        "openai",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Let me look.<|end|><|start|>assistant to=functions.now<|channel|>commentary "
        "json<|message|>{}",
        content="Let me look.",
        calls=NOW,
        reasoning="Easy.",
    ),
    Recorded(
        "openai",
        "<|channel|>final<|message|>It is a < b.<|return|>",
        content="It is a < b.",
    ),
)
