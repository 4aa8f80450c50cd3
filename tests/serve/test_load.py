"""Clients that leave, queues that fill, times that run out: nothing leaks and nobody hangs."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from typing import Any

import httpx
import openai
import pytest

from trtspec import SamplingParams

from .. import inside
from ..e2e.helpers import assert_no_leak
from .conftest import DEADLINE, Serve, Server, wait_until

LONG = {"prompt": "the cat", "max_tokens": 240, "temperature": 0.8, "seed": 1, "ignore_eos": True}


def is_idle(server: Server) -> bool:
    load = server.llm.load()
    quiet = not (load.num_running or load.num_waiting or server.service.gate.num_requests)
    # The worker takes a request off its lists a moment before it gives the blocks back.
    return (
        quiet
        and not inside.worker(server.llm)._live
        and not inside.executor(server.llm).kv_cache_usage
    )


def slow_down(server: Server, seconds: float) -> None:
    """Make every executor step take at least so long."""
    step = inside.executor(server.llm).step

    def slow_step() -> Any:
        time.sleep(seconds)
        return step()

    inside.executor(server.llm).step = slow_step


class AbortWatch:
    """For every abort, how many executor steps began between it and the freeing of the blocks."""

    def __init__(self, server: Server) -> None:
        self.steps: list[int] = []
        self._asked: list[int] = []
        self._executor, worker = inside.executor(server.llm), inside.worker(server.llm)
        self._begun = 0
        step, freed, asked = self._executor.step, self._executor.abort, worker.abort

        def watched_step() -> Any:
            self._begun += 1
            return step()

        def watched_freeing(request_id: int) -> None:
            freed(request_id)
            self.steps.append(self._begun - self._asked.pop(0))

        def watched_abort(output: Any) -> None:
            self._asked.append(self._begun)
            asked(output)

        self._executor.step, self._executor.abort = watched_step, watched_freeing
        worker.abort = watched_abort


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks_within_one_step(serve: Serve, stream: bool) -> None:
    with serve("chain") as server:
        slow_down(server, 0.02)
        watch = AbortWatch(server)
        if stream:
            with httpx.stream(
                "POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}
            ) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=0.3)
        wait_until(lambda: watch.steps, "the abort", 5.0)
        assert watch.steps == [0] or watch.steps == [1]
        wait_until(lambda: is_idle(server), "the server is idle")
        assert server.llm.get_metrics()["num_emitted_tokens"] < 200
        assert_no_leak(server.llm)
        text = server.get("/metrics").text
        assert 'request_success_total{finished_reason="abort",model_name="tiny"} 1.0' in text


@pytest.mark.slow
def test_many_clients_with_random_disconnects(serve: Serve) -> None:
    """64 at once: every one that stays gets exactly its own text, and every block comes back."""
    rng = random.Random(0)
    plans = [(i, rng.random() < 0.4, rng.random() < 0.5, rng.randrange(4, 24)) for i in range(64)]
    with serve("tree", llm={"max_batch_size": 8}) as server:
        params = [SamplingParams(max_tokens=n, temperature=0.9, seed=i) for i, _, _, n in plans]
        outputs = server.llm.generate(["the cat"] * 64, params, use_tqdm=False)
        expected = [output.outputs[0].text for output in outputs]
        client = openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=2 * DEADLINE
        )

        async def one(index: int, leaves: bool, streams: bool, tokens: int) -> str | None:
            options: dict[str, Any] = {
                "model": "tiny", "prompt": "the cat", "temperature": 0.9, "seed": index,
                "max_tokens": tokens,
            }  # fmt: skip
            if leaves and not streams:
                request = client.completions.create(**options, timeout=rng.uniform(0.01, 0.5))
                try:
                    return (await request).choices[0].text  # served faster than it left
                except openai.APITimeoutError:
                    return None
            if not streams:
                return (await client.completions.create(**options)).choices[0].text
            text = ""
            async with await client.completions.create(stream=True, **options) as stream:
                async for chunk in stream:
                    text += chunk.choices[0].text
                    if leaves:
                        return None
            return text

        async def everyone() -> list[str | None]:
            return await asyncio.gather(*(one(*plan) for plan in plans))

        answers = asyncio.run(everyone())
        for (index, leaves, _, _), answer in zip(plans, answers, strict=True):
            assert answer == expected[index] or (leaves and answer is None)
        wait_until(lambda: is_idle(server), "the server is idle")
        assert_no_leak(server.llm)
        assert server.post(json={"prompt": "a", "max_tokens": 1}).status_code == 200


@pytest.mark.slow
def test_a_full_queue(serve: Serve) -> None:
    """429 with Retry-After, at once; what was admitted is served."""
    with serve(llm={"max_batch_size": 1}, max_queue=2) as server:
        slow_down(server, 0.02)
        codes: list[int] = []
        body = {**LONG, "max_tokens": 20}
        threads = [
            threading.Thread(target=lambda: codes.append(server.post(json=body).status_code))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.service.gate.num_sequences == 3, "three are admitted")
        wait_until(lambda: server.llm.load().num_waiting == 2, "two wait")
        began = time.monotonic()
        refused = server.post(json=body)
        assert time.monotonic() - began < 1.0
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        with pytest.raises(openai.RateLimitError):
            server.client().completions.create(model="tiny", prompt="a")
        never = server.post(json={**body, "n": 4})
        assert never.status_code == 400 and "at most 3" in never.json()["error"]["message"]
        for thread in threads:
            thread.join()
        assert codes == [200] * 3
        assert server.post(json={**body, "n": 3, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_timeouts(serve: Serve, stream: bool) -> None:
    """The server's limit and a client's shorter one; a stream that has begun ends with an error."""
    with serve(request_timeout=20.0) as server:
        slow_down(server, 0.05)
        began = time.monotonic()
        response = server.post(
            json={**LONG, "stream": stream}, headers={"X-Request-Timeout": "0.4"}
        )
        assert time.monotonic() - began < 5.0
        if stream:
            assert response.status_code == 200
            *_, last, done, _ = response.text.split("\n\n")
            assert done == "data: [DONE]"
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert response.status_code == 504
            error = response.json()["error"]
        assert error["code"] == "request_timeout" and "0.4 s" in error["message"]
        wait_until(lambda: is_idle(server), "the server is idle")
        assert_no_leak(server.llm)
        for bad in ("0", "-1", "nan", "soon"):
            header = {"X-Request-Timeout": bad}
            assert server.post(json=LONG, headers=header).status_code == 400


def test_a_reader_that_does_not_read_delays_nobody(serve: Serve) -> None:
    with serve(request_timeout=15.0) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json={**LONG, "stream": True}):
            answer = server.post(json={**LONG, "max_tokens": 20, "seed": 2})
            assert answer.json()["usage"]["completion_tokens"] == 20
        wait_until(lambda: is_idle(server), "the server is idle")


def test_metrics_agree_with_the_engine(serve: Serve) -> None:
    """Every figure is the engine's own, under vLLM's names."""
    with serve("tree", metrics_prefix="vllm") as server:
        client = server.client()
        client.completions.create(model="tiny", prompt=["the cat", "a rat"], n=2, seed=1)
        values = {}
        for line in server.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name.replace('model_name="tiny"', "").replace("{}", "")] = float(value)
        figures = server.llm.get_metrics()
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            assert values[f"vllm:spec_decode_{name}_total"] == figures[name] > 0
        per_pos = figures["num_accepted_tokens_per_pos"]
        for position, accepted in enumerate(per_pos):
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            assert values[f'{name}{{,position="{position}"}}'] == accepted
        for name in ("num_draft_tokens", "num_accepted_tokens"):
            value = values[f'vllm:spec_decode_{name}_per_source_total{{,source="0"}}']
            assert value == figures[name] and figures[f"{name}_per_source"] == [value]
        assert values["vllm:spec_decode_acceptance_length"] == figures["acceptance_length"]
        ((draft, cost),) = ((found["draft"], found["token_cost"]) for found in figures["drafts"])
        assert values[f'vllm:spec_decode_draft_alarm{{draft="{draft}",}}'] == 0
        assert values[f'vllm:spec_decode_draft_token_cost{{draft="{draft}",}}'] == cost
        # The first token of a sequence comes from its prefill, all others from verify steps.
        generated = values["vllm:generation_tokens_total"]
        assert generated == figures["num_emitted_tokens"] + 4
        assert generated == values["vllm:request_generation_tokens_sum"]
        prompts = [server.llm.tokenizer(p)["input_ids"] for p in ("the cat", "a rat")]
        assert values["vllm:prompt_tokens_total"] == sum(map(len, prompts))
        assert values["vllm:request_prompt_tokens_count"] == 2
        assert values["vllm:time_to_first_token_seconds_count"] == 4
        assert values["vllm:request_queue_time_seconds_count"] == 4
        assert values["vllm:num_preemptions_total"] == figures["num_preemptions"] == 0
        queries, hits = (f"vllm:prefix_cache_{what}_total" for what in ("queries", "hits"))
        # Each of two samples is a request of its own.
        assert values[queries] == figures["num_prefix_cache_queries"] == 2 * sum(map(len, prompts))
        assert values[hits] == figures["num_prefix_cache_hits"]
        assert values["vllm:engine_failed_steps_total"] == figures["num_failed_steps"] == 0
        assert values["vllm:num_requests_running"] == values["vllm:num_requests_waiting"] == 0
        assert values["vllm:kv_cache_usage_perc"] == 0
        name = 'http_requests_total{handler="/v1/completions",method="POST",status="200"}'
        assert values[name] == 1
