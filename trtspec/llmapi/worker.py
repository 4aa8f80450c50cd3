"""Worker: the thread that owns a PyExecutor and delivers its results to the callers' handles."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtspec.distributed.cores import keep_to_share
from trtspec.distributed.followers import Followers
from trtspec.errors import EngineError, TrtspecError
from trtspec.executor.py_executor import PyExecutor, StepOutput
from trtspec.executor.step.request import Request, Transfer
from trtspec.executor.text.stopping import StopChecker
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput
from trtspec.log import logger
from trtspec.ops.threads import take_threads


@dataclass(frozen=True)
class LiveSequence:
    """One sequence on its way into the executor."""

    request: Request
    stop: StopChecker
    completion: CompletionOutput
    output: RequestOutput
    handle: GenerationHandle


class Worker:
    """Feeds submitted sequences to the executor and steps it while there is work.

    num_prompt_tokens counts a prompt once, when its first sequence has its first token;
    num_generated_tokens counts emitted tokens.

    The thread lives in the process that started it. A forked child has no such thread, and its
    locks may be held for ever, so every call checks the process before it takes a lock.
    """

    def __init__(
        self,
        executor: PyExecutor,
        close: Callable[[], None] | None = None,
        followers: Followers | None = None,
    ) -> None:
        """``close``: what the thread does last; None: close the executor. ``followers``: the other
        ranks of a split target."""
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self._process = os.getpid()
        self._fault: EngineError | None = None
        self._step_began: float | None = None
        self._executor = executor
        self._close_executor = close or executor.close
        self._followers = followers
        executor.meanwhile = self._meanwhile
        self._wake = threading.Condition()
        self._arrivals: list[LiveSequence] = []
        self._aborts: list[RequestOutput] = []
        self._transferred: list[int] = []  # ids of requests whose transfer has ended
        self._outputs: list[StepOutput] = []  # of the last step, not yet delivered
        self._closed = False
        self._live: dict[int, LiveSequence] = {}
        self._thread = threading.Thread(target=self._run, name="trtspec-worker", daemon=True)
        self._thread.start()

    @property
    def step_seconds(self) -> float:
        """How long the current step has taken so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def fault(self) -> EngineError | None:
        """Why nothing can be served here any more: the thread or a rank died, or this process never
        had them. None while requests can be served."""
        if self._process != os.getpid():
            return EngineError(
                f"this LLM belongs to process {self._process}, and this one ({os.getpid()}) was "
                "forked from it: engines do not survive a fork; start processes by spawn and make "
                "an LLM in each"
            )
        if self._fault is None and self._followers is not None:
            return self._followers.fault
        return self._fault

    def check(self) -> None:
        """Raise EngineError if nothing can be served here any more."""
        fault = self.fault
        if fault is not None:
            raise EngineError(*fault.args)
        if self._closed:
            raise EngineError("this LLM was shut down; make a new one")

    def submit(self, sequences: Sequence[LiveSequence]) -> None:
        """Queue sequences together, so that they can share a first step.

        Raises:
            EngineError: see `check`.
        """
        self.check()
        with self._wake:
            self.check()
            self._arrivals.extend(sequences)
            self._wake.notify()

    def abort(self, output: RequestOutput) -> None:
        """End all sequences of a prompt that have not ended yet. In a forked child there are
        none."""
        if self._process != os.getpid():
            return
        with self._wake:
            self._aborts.append(output)
            self._wake.notify()

    def close(self) -> None:
        """Abort running requests and stop the thread; a forked child has neither."""
        if self._process != os.getpid():
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            # An error here is a bug of ours. Still, nobody may wait for a thread that is gone.
            logger.exception("the worker died")
            fault = EngineError(f"the engine's worker died: {error!r}; make a new LLM")
            with self._wake:
                self._fault, self._closed = fault, True
                arrivals, self._arrivals = self._arrivals, []
            for sequence in [*self._live.values(), *arrivals]:
                self._finish(sequence, "error", fault)
            self._live.clear()
        finally:
            self._close_executor()

    def _loop(self) -> None:
        if self._followers is None:
            take_threads()
        else:
            group = self._followers.group
            keep_to_share(group.rank, group.ranks)
            take_threads(group.ranks)
        while True:
            with self._wake:
                while not self._called:
                    self._wake.wait()
                arrivals, self._arrivals = self._arrivals, []
                transferred, self._transferred = self._transferred, []
                aborts, self._aborts = self._aborts, []
                closed = self._closed
            if aborts or closed:
                self._guard(self._deliver_all)
            for sequence in arrivals:
                self._start(sequence)
            for request_id, sequence in list(self._live.items()):
                if closed or any(sequence.output is output for output in aborts):
                    self._end(request_id, "abort")
            if closed:
                return
            for request_id in transferred:
                self._end_transfer(request_id)
            if self._executor.has_work:
                self._guard(self._step)

    @property
    def _called(self) -> bool:
        """Whether there is work."""
        return bool(
            self._arrivals
            or self._aborts
            or self._transferred
            or self._closed
            or self._executor.has_work
        )

    def _start(self, sequence: LiveSequence) -> None:
        self._live[sequence.request.id] = sequence
        try:
            self._executor.add(sequence.request, sequence.stop)
        except TrtspecError as error:
            self._end(sequence.request.id, "error", error)

    def _guard(self, act: Callable[[], None]) -> None:
        """Run a part of the loop; if it fails, the running requests fail and the loop goes on."""
        try:
            act()
        except Exception as error:
            # The executor handles failures of requests, so this is a bug of ours. Nobody may hang
            # on it.
            logger.exception("the executor failed")
            failure = EngineError(f"the executor failed: {error}")
            self._executor.metrics.end_step(False, failure)
            self._outputs = []
            for request_id in list(self._live):
                self._executor.abort(request_id)
                self._end(request_id, "error", failure)

    def _step(self) -> None:
        self._step_began = time.monotonic()
        try:
            self._outputs = self._executor.step()
            # The calls of the next step, if there is one, are time to deliver them in.
            if not (self._executor.overlaps and self._executor.has_work):
                self._deliver_all()
        finally:
            self._step_began = None

    def _meanwhile(self) -> None:
        """Work for while engine calls run: deliver the last step, accept new requests."""
        self._deliver_all()
        with self._wake:
            arrivals, self._arrivals = self._arrivals, []
        for sequence in arrivals:
            self._start(sequence)

    def _deliver_all(self) -> None:
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            self._deliver(output)

    def _deliver(self, step: StepOutput) -> None:
        sequence = self._live[step.request.id]
        completion = sequence.completion
        completion.queue_time = step.request.queue_time
        completion.num_cached_tokens = step.request.num_cached_tokens or 0
        if step.tokens and completion.first_token_time is None:
            completion.first_token_time = time.monotonic()
            if completion.index == 0:
                self.num_prompt_tokens += step.request.num_prompt_tokens
        self.num_generated_tokens += len(step.tokens)
        with sequence.handle.updating():
            if step.prompt_logprobs is not None:
                sequence.output.add_prompt_logprobs(step.prompt_logprobs)
            completion.token_ids.extend(step.tokens)
            completion.text = sequence.stop.text
            completion.metrics = self._executor.metrics.of(step.request.id)
            if step.logprobs is not None:
                if completion.logprobs is None:
                    completion.logprobs = []
                completion.logprobs.extend(step.logprobs)
            if step.spec_step is not None:
                if completion.spec_steps is None:
                    completion.spec_steps = []
                completion.spec_steps.append(step.spec_step)
            if step.request.finish_reason is not None:
                completion.stop_reason = sequence.stop.stop_reason
                if step.request.transfer is None or step.error is not None:
                    self._end(step.request.id, step.request.finish_reason, step.error)
                    return
                self._await_transfer(step.request.id, step.request.transfer)
            if step.tokens:
                sequence.handle.publish(completion)

    def _await_transfer(self, request_id: int, transfer: Transfer) -> None:
        """End the sequence when its transfer has finished, while others go on."""

        def done() -> None:
            with self._wake:
                self._transferred.append(request_id)
                self._wake.notify()

        transfer.add_done_callback(done)

    def _end_transfer(self, request_id: int) -> None:
        sequence = self._live.get(request_id)
        if sequence is None:  # it was aborted meanwhile
            return
        request = sequence.request
        assert request.transfer is not None and request.finish_reason is not None
        try:
            sequence.completion.kv_transfer_params = request.transfer.result()
        except TrtspecError as error:
            self._end(request_id, "error", error)
        else:
            self._end(request_id, request.finish_reason)

    def _end(self, request_id: int, reason: str, error: TrtspecError | None = None) -> None:
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return
        if reason == "abort":
            self._executor.abort(request_id)
        self._executor.metrics.release(request_id)
        self._finish(sequence, reason, error)

    @staticmethod
    def _finish(sequence: LiveSequence, reason: str, error: TrtspecError | None) -> None:
        transfer = sequence.request.transfer
        if transfer is not None and reason in ("abort", "error"):
            transfer.discard()
        with sequence.handle.updating():
            sequence.completion.finish_reason = reason
            sequence.completion.finish_time = time.monotonic()
            sequence.output.error = sequence.output.error or error
            sequence.handle.publish(sequence.completion)
