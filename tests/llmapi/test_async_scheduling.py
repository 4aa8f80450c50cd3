"""The loop that works while engine calls run says what the one that waits says."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from trtspec.config.sampling import SamplingParams
from trtspec.errors import TrtspecError
from trtspec.executor.overlap import Overlap
from trtspec.executor.step.request import Request
from trtspec.executor.text.stopping import StopChecker
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
from trtspec.llmapi.worker import LiveSequence, Worker

from ..conformance.recorder import Recorder
from ..conformance.scenario import Arrival, random_scenario

SEEDS = (300, 307, 309, 316, 325, 327, 328, 330, 331, 333, 338, 359, 396)
SPELLING = "abÃ©cdefghijklmnopqr"  # GPT-2's letters of bytes: the third and the fourth make an é
STOPS = ("ab", "ba", "é", "aa", "éb", "c")


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(SPELLING)}, []))
    made.decoder = decoders.ByteLevel()
    return made


class Served:
    """One scenario behind a worker. Requests and aborts come while a step is planned: both loops
    see them before the next one."""

    worker_type: type[Worker] = Worker
    patience = 60.0  # seconds

    def __init__(self, seed: int, overlap: Overlap | None) -> None:
        scenario = random_scenario(seed)
        self.rng = random.Random(seed)
        self.recorder = Recorder(scenario, overlap)
        self.executor = self.recorder.executor
        self.steps: list[Any] = []
        self.handles: dict[int, GenerationHandle] = {}
        self.seen: Counter[str] = Counter()
        self._waiting = list(scenario.requests)
        self._options = {arrival.id: self._draw() for arrival in scenario.requests}
        self._tokenizer = tokenizer()
        self._slow_down()
        self._plan, self._collect = self.executor.plan, self.executor.collect
        self.executor.plan = self._watched_plan  # type: ignore[method-assign]
        self.executor.collect = self._watched_collect  # type: ignore[method-assign]
        self._break_a_collection()
        self.worker = self.worker_type(self.executor)

    def _draw(self) -> dict[str, Any]:
        stops = self.rng.sample(STOPS, 2) if self.rng.random() < 0.5 else []
        return {
            "stop": stops,
            "include_stop_str_in_output": self.rng.random() < 0.5,
            "min_tokens": self.rng.choice((0, 0, 0, 1)),
            "repetition_penalty": self.rng.choice((1.0, 1.0, 1.3)),
            "logprobs": self.rng.choice((None, None, 1)),
        }

    def _slow_down(self) -> None:
        """Some calls take longer than what is done meanwhile, some do not."""
        rng = random.Random(1)

        def slowed(announce: Callable[[], None]) -> Callable[[], None]:
            def before_call() -> None:
                announce()
                if rng.random() < 0.3:
                    time.sleep(0.0005)

            return before_call

        for engine in filter(None, (self.recorder.target, self.recorder.draft)):
            engine.before_call = slowed(engine.before_call)

    def _break_a_collection(self) -> None:
        fatal = self.rng.randint(1, 12) if self.rng.random() < 0.2 else None
        drafter: Any = self.recorder.drafter
        accept = drafter.on_accepted

        def on_accepted(*given: Any) -> Any:
            if len(self.steps) == fatal:
                self.seen["failed in collect"] += 1
                raise RuntimeError("a collection fails on purpose")
            return accept(*given)

        drafter.on_accepted = on_accepted

    def _watched_plan(self) -> Any:
        plan = self._plan()
        step = len(self.steps)
        self.steps.append([(i.request.id, i.start, i.num_rows, i.max_nodes) for i in plan.items])
        self.seen["preempted"] += len(plan.preempted)
        self._submit([a for a in self._waiting if a.arrival <= step])
        for arrival in self.recorder.scenario.requests:
            handle = self.handles.get(arrival.id)
            if arrival.abort is not None and arrival.abort <= step and handle is not None:
                handle.abort()
        return plan

    def _watched_collect(self, launched: Any) -> Any:
        self.seen["failed in launch"] += launched.failure is not None
        outputs = self._collect(launched)
        self.steps.append([(o.request.id, list(o.tokens), str(o.error)) for o in outputs])
        return outputs

    def _submit(self, arrivals: list[Arrival]) -> None:
        self._waiting = [a for a in self._waiting if a not in arrivals]
        sequences = [self._sequence(arrival) for arrival in arrivals]
        self.worker.submit([sequence for sequence in sequences if sequence is not None])

    def _sequence(self, arrival: Arrival) -> LiveSequence | None:
        params = SamplingParams(
            max_tokens=arrival.max_tokens, temperature=arrival.temperature, seed=arrival.seed,
            top_k=arrival.top_k, top_p=arrival.top_p, min_p=arrival.min_p,
            stop_token_ids=tuple(arrival.stop_token_ids), ignore_eos=arrival.ignore_eos,
            **self._options[arrival.id],
        )  # fmt: skip
        eos = () if arrival.ignore_eos else tuple(arrival.eos_token_ids)
        limit = self.recorder.scenario.max_seq_len
        try:
            request = Request.create(
                arrival.id, arrival.prompt, params, arrival.seed, limit, arrival.sample_index, eos
            )
        except TrtspecError:
            return None
        completion = CompletionOutput(0, arrival.seed)
        output = RequestOutput(arrival.id, None, arrival.prompt, [completion])
        handle = GenerationHandle(output, True, self.worker.abort)
        stop = StopChecker(params, eos, self._tokenizer, arrival.prompt)
        self.handles[arrival.id] = handle
        return LiveSequence(request, stop, completion, output, handle)

    def run(self) -> dict[str, Any]:
        """Everything that a caller sees, and what the steps were."""
        while self._waiting:
            first = min(arrival.arrival for arrival in self._waiting)
            self._submit([a for a in self._waiting if a.arrival == first])
            self._wait()
        self.worker.close()
        self._assert_nothing_left()
        figures = self.executor.metrics.to_dict()
        return {
            "steps": self.steps,
            "outputs": {id: snapshots(handle) for id, handle in self.handles.items()},
            "figures": {k: v for k, v in figures.items() if not k.endswith(("_ms", "_share"))},
            "tokens": (self.worker.num_prompt_tokens, self.worker.num_generated_tokens),
        }

    def _wait(self) -> None:
        """Until nothing runs. Something does while a step is planned, which adds to the handles."""
        while running := [h for h in list(self.handles.values()) if not h.output.finished]:
            running[0].wait(timeout=self.patience)

    def _assert_nothing_left(self) -> None:
        executor, recorder = self.executor, self.recorder
        assert not executor.has_work and not executor._stops
        assert not executor._sampler.live_requests and not recorder.drafter.live_requests
        assert not executor.metrics._requests and not self.worker._live
        assert not self.worker._outputs
        for manager in recorder.resources.all:
            assert manager.num_free_blocks == manager.num_blocks


def snapshots(handle: GenerationHandle) -> list[Any]:
    """What a streaming reader gets, to the end."""
    seen = []
    try:
        for output in handle:
            (c,) = output.outputs
            seen.append((c.text, c.token_ids, c.finish_reason, c.stop_reason, repr(c.logprobs),
                         c.metrics.to_dict()))  # fmt: skip
    except TrtspecError as error:
        (c,) = handle.output.outputs
        seen.append((c.text, c.token_ids, c.finish_reason, str(error)))
    return seen


Mode = Callable[[], Overlap | None]
WAYS: dict[str, Mode] = {
    "calls that wait": lambda: Overlap(calls_wait=True),
    "calls that return at once": lambda: Overlap(calls_wait=False),
}


@pytest.fixture(scope="module")
def synchronous() -> dict[int, dict[str, Any]]:
    """Each scenario in the loop that waits."""
    return {seed: Served(seed, None).run() for seed in SEEDS}


@pytest.mark.parametrize("way", WAYS)
def test_it_says_what_the_loop_that_waits_says(
    synchronous: dict[int, dict[str, Any]], way: str
) -> None:
    seen: Counter[str] = Counter()
    for seed, expected in synchronous.items():
        overlap = WAYS[way]()
        assert overlap is not None
        served = Served(seed, overlap)
        got = served.run()
        for part, value in expected.items():
            assert got[part] == value, (seed, part)
        seen += served.seen
        seen["overlapped"] += overlap.seconds > 0
        for snaps in got["outputs"].values():
            seen[str(snaps[-1][2])] += 1
            seen["stop string"] += isinstance(snaps[-1][3], str) and snaps[-1][3] in STOPS
    for event in ("preempted", "failed in launch", "failed in collect", "overlapped",
                  "stop", "length", "abort", "error", "stop string"):  # fmt: skip
        assert seen[event] > 0, seen


class Forgets(Worker):
    """Aborts before it has delivered the last step."""

    def _guard(self, act: Callable[[], None]) -> None:
        if act == self._deliver_all:
            self._outputs = []
        else:
            super()._guard(act)


def test_a_loop_that_aborts_too_early_is_noticed(
    synchronous: dict[int, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Served, "worker_type", Forgets)
    monkeypatch.setattr(Served, "patience", 1.0)
    served = Served(359, Overlap(calls_wait=False))
    try:
        assert served.run()["outputs"] != synchronous[359]["outputs"]
    except TimeoutError:  # what was forgotten was a request's end
        served.worker.close()


def test_shutdown_while_a_step_runs() -> None:
    """What the step says still comes."""
    served = Served(316, Overlap(calls_wait=True))
    served._submit(served._waiting)
    while len(served.steps) < 6:
        time.sleep(0.001)
    served.worker.close()
    served._assert_nothing_left()
    emitted: Counter[int] = Counter()
    for line in served.steps[1::2]:
        for request_id, tokens, _ in line:
            emitted[request_id] += len(tokens)
    for id, handle in served.handles.items():
        (completion,) = handle.wait(timeout=60).outputs
        assert len(completion.token_ids) == emitted[id]
    assert "abort" in {h.output.outputs[0].finish_reason for h in served.handles.values()}


def test_a_delivery_that_fails_ends_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(316, Overlap(calls_wait=True))
    deliver, calls = served.worker._deliver, iter(range(1000))

    def fails(step: Any) -> None:
        if next(calls) == 3:
            raise RuntimeError("a delivery fails on purpose")
        deliver(step)

    monkeypatch.setattr(served.worker, "_deliver", fails)
    arrivals = served._waiting
    served._submit(arrivals)
    errors = [str(handle.wait(timeout=60).error) for handle in served.handles.values()]
    assert "the executor failed: a delivery fails on purpose" in errors
    served.worker.close()
    served._assert_nothing_left()


def test_work_is_done_beside_the_call() -> None:
    """Also where no call begins, or the calls fail."""
    overlap, order = Overlap(calls_wait=True), []

    def calls() -> str:
        overlap.begin()
        while "work" not in order:  # the other thread
            time.sleep(0.001)
        overlap.begin()  # a second call finds nothing more to do
        return "done"

    assert overlap.during(calls, lambda: order.append("work")) == "done"
    assert overlap.during(lambda: "none", lambda: order.append("inline")) == "none"
    assert order == ["work", "inline"] and overlap.seconds > 0

    def fails() -> None:
        overlap.begin()
        raise RuntimeError("calls")

    with pytest.raises(RuntimeError, match="calls"):
        overlap.during(fails, lambda: order.append("all the same"))
    assert order[-1] == "all the same"

    def breaks() -> None:
        raise RuntimeError("work")

    with pytest.raises(RuntimeError, match="work"):
        overlap.during(overlap.begin, breaks)
    assert overlap.during(calls, lambda: None) == "done"
    overlap.close()
