"""An LLM in a forked child: it says so at once, and the child ends by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.errors import EngineError
from trtspec.llmapi.growth import growth

from .conftest import TextModel

DEADLINE = 60.0
LONG = SamplingParams(max_tokens=None, ignore_eos=True)


def in_child(act: Callable[[], Any]) -> str:
    """Fork, run `act` in the child and return how it ended: the error as text, or "returned"."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        try:
            act()
            said = "returned"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + DEADLINE
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child waits for ever")
        time.sleep(0.005)
    with os.fdopen(reading) as pipe:
        return pipe.read()


async def first(handle: Any) -> None:
    async for _ in growth([handle]):
        return


def test_every_call_says_so(text_model: TextModel) -> None:
    """Though threads of the parent may hold every lock at the moment of the fork."""
    with text_model.open() as llm:
        done = llm.generate_async("the cat", SamplingParams(max_tokens=3), streaming=True)
        text = done.result(DEADLINE).outputs[0].text
        running = llm.generate_async("the cat", LONG, streaming=True)
        calls: list[Callable[[], Any]] = [
            lambda: llm.generate("a"),
            lambda: llm.generate(["a", "b"], use_tqdm=False),
            lambda: llm.generate_async("a"),
            lambda: llm.submit(["a"]),
            lambda: llm.chat([{"role": "user", "content": "a"}]),
        ]
        waits: list[Callable[[], Any]] = [
            running.result, running.wait, lambda: next(iter(running)),
            lambda: asyncio.run(running.aresult()), lambda: asyncio.run(first(running)),
        ]  # fmt: skip
        release, locked = threading.Event(), threading.Event()

        def hold() -> None:
            with llm._worker._wake, running._changed, done._changed:
                locked.set()
                release.wait(DEADLINE)

        holder = threading.Thread(target=hold)
        holder.start()
        assert locked.wait(DEADLINE)
        try:
            for call in calls:
                assert f"belongs to process {os.getpid()}" in in_child(call)
            for wait in waits:
                assert f"runs in process {os.getpid()}" in in_child(wait)
            for quiet in (llm.shutdown, running.abort):
                assert in_child(quiet) == "returned"

            def reads_what_was_finished() -> None:
                assert done.result().outputs[0].text == text
                assert llm.get_metrics()["num_engine_steps"] and llm.load() and llm.fault

            assert in_child(reads_what_was_finished) == "returned"
        finally:
            release.set()
            holder.join(DEADLINE)
        running.abort()
        assert running.result(DEADLINE).outputs[0].finish_reason == "abort"
        assert llm.generate("the cat", SamplingParams(max_tokens=3)).outputs[0].text == text


def test_a_new_llm_in_a_child(llm: LLM, text_model: TextModel) -> None:
    """It could not run: its kernels' threads are the parent's."""
    said = in_child(lambda: text_model.open().generate("a"))
    assert f"forked from {os.getpid()}, which had opened an LLM" in said
    said = in_child(lambda: LLM("no/such/folder"))
    assert "forked from" in said, "found before anything is looked for"


@pytest.mark.slow
def test_a_child_ends_by_itself() -> None:
    """What is imported for an LLM leaves no thread behind that the end of a child waits for."""
    program = (
        "import os, sys, trtspec.llmapi.llm, trtspec.backends.aoti.compile\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "child = os.fork()\n"
        "if child: os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=DEADLINE)


def test_the_parent_notices_nothing(llm: LLM) -> None:
    before = llm.generate("a rat", SamplingParams(max_tokens=5)).outputs[0].text
    assert in_child(lambda: llm.shutdown()) == "returned"
    assert llm.generate("a rat", SamplingParams(max_tokens=5)).outputs[0].text == before
    with pytest.raises(EngineError, match="shut down"):
        llm.shutdown()
        llm.generate("a rat")
