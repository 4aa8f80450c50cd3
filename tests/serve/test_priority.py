"""The field `priority`: who is served first, and a refusal where the server takes no notice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from trtspec.commands.serve import llm_options, main, make_parser

from .. import inside
from .conftest import Serve, Server, wait_until
from .test_refusals import USER, error_of

BODIES = {
    "/v1/completions": {"prompt": "the cat", "max_tokens": 4},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 4},
}


@pytest.mark.parametrize("path", BODIES)
def test_waiting_requests_of_a_lower_priority_are_served_first(serve: Serve, path: str) -> None:
    ended: list[str] = []
    long = {**BODIES[path], "max_tokens": 200, "ignore_eos": True}
    bodies = {
        "runs": long,
        "low": {**long, "priority": 2**40},
        "plain": long,
        "high": {**long, "priority": -1, "stream": True},
    }
    with serve(llm={"scheduling_policy": "priority", "max_batch_size": 1}) as server:
        everybody_waits = threading.Event()
        step = inside.executor(server.llm).step

        def patient() -> Any:
            everybody_waits.wait(0.1)
            return step()

        inside.executor(server.llm).step = patient

        def ask(name: str) -> None:
            assert server.post(path, json=bodies[name]).status_code == 200
            ended.append(name)

        with ThreadPoolExecutor(len(bodies)) as threads:
            asked = [threads.submit(ask, "runs")]
            wait_until(lambda: server.llm.load().num_running == 1, "a request runs")
            asked += [threads.submit(ask, name) for name in ("low", "plain", "high")]
            wait_until(lambda: server.llm.load().num_waiting == 3, "three requests wait")
            assert not ended
            everybody_waits.set()
        for future in asked:
            future.result()
    assert ended == ["runs", "high", "plain", "low"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_priority_is_refused_where_it_has_no_effect(
    server: Server, path: str, stream: bool
) -> None:
    body = {**BODIES[path], "stream": stream}
    error = error_of(server.post(path, json={**body, "priority": 5}), 400)
    assert error["param"] == "priority" and "priority=5 has no effect" in error["message"]
    for nothing in (0, None):
        assert server.post(path, json={**body, "priority": nothing}).status_code == 200


@pytest.mark.parametrize("value", [1.5, "1", True, 2**63])
def test_a_priority_is_an_integer(server: Server, value: Any) -> None:
    body = {**BODIES["/v1/completions"], "priority": value}
    assert "priority" in error_of(server.post(json=body), 400)["message"]


def test_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, policy in ([], "fcfs"), (["--scheduling-policy", "priority"], "priority"):
        args = make_parser().parse_args(["model", *flags])
        assert llm_options(args)["scheduling_policy"] == policy
    with pytest.raises(SystemExit):
        main(["model", "--scheduling_policy", "lifo"])
    refusal = capsys.readouterr().err
    assert "'lifo'" in refusal and "fcfs" in refusal and "priority" in refusal
