"""64 clients at once, who want text, JSON, tools and reasoning, and of whom many leave."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import openai
import pytest

from ..e2e.helpers import TinyModels, assert_no_leak, ngram, open_llm
from .conftest import DEADLINE, run_server, wait_until
from .talker import save_talker, template
from .test_load import is_idle
from .test_tools import PET, PETS, USER

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {
        "response_format": {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET}},
        "extra_body": {"thinking_budget": 3},
    },
    {"tools": PETS, "tool_choice": "required", "extra_body": {"thinking_budget": 3}},
    {"tools": PETS, "extra_body": {"thinking_budget": 6}},
)
Said = tuple[str, str, tuple[tuple[str, str], ...], str | None]


@pytest.fixture(scope="module")
def talker(models: TinyModels) -> Path:
    return save_talker(models)


def whole(choice: Any) -> Said:
    message = choice.message
    calls = tuple((c.function.name, c.function.arguments) for c in message.tool_calls or ())
    thought = (message.model_extra or {}).get("reasoning_content") or ""
    return message.content or "", thought, calls, choice.finish_reason


async def streamed(stream: Any, leaves: bool) -> Said | None:
    content = thought = ""
    calls: list[list[str]] = []
    reason = None
    async for chunk in stream:
        if leaves and (chunk.choices[0].delta.content or calls):
            return None
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        thought += (choice.delta.model_extra or {}).get("reasoning_content") or ""
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, thought, tuple((name, text) for name, text in calls), reason


@pytest.mark.slow
def test_everyone_who_stays_gets_what_is_his(talker: Path) -> None:
    """What a client alone would get, and every block comes back."""
    rng = random.Random(1)
    plans = [(i % 12, rng.random() < 0.4, rng.random() < 0.5) for i in range(64)]

    def asked(kind: int) -> Any:
        options = {"model": "tiny", "messages": USER, "max_tokens": 60 + kind, "seed": kind}
        return {**options, "temperature": 0.9, **KINDS[kind % len(KINDS)]}

    method = ngram(4)
    options: dict[str, Any] = {"max_batch_size": 8, "skip_tokenizer_init": False}
    with run_server(lambda: open_llm(talker, method, **options)) as server:
        server.llm.tokenizer.chat_template = template("hermes", True, "assistant:<think>")
        single = server.client().chat.completions
        expected = [whole(single.create(**asked(kind)).choices[0]) for kind in range(12)]
        assert sum(bool(calls) for _, _, calls, _ in expected) >= 2
        assert sum(bool(thought) for _, thought, _, _ in expected) >= 3
        client = openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=2 * DEADLINE
        ).chat.completions

        async def one(kind: int, leaves: bool, streams: bool) -> Said | None:
            if streams:
                async with await client.create(stream=True, **asked(kind)) as stream:
                    return await streamed(stream, leaves)
            patience: Any = {"timeout": rng.uniform(0.01, 0.5)} if leaves else {}
            try:
                return whole((await client.create(**asked(kind), **patience)).choices[0])
            except openai.APITimeoutError:
                return None

        async def everyone() -> list[Said | None]:
            return await asyncio.gather(*(one(*plan) for plan in plans))

        for (kind, leaves, _), said in zip(plans, asyncio.run(everyone()), strict=True):
            assert said == expected[kind] or (leaves and said is None)
        wait_until(lambda: is_idle(server), "the server is idle")
        assert_no_leak(server.llm)
