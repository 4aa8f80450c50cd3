"""growth: what requests gain, told piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from trtspec.errors import TrtspecError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.handle import GenerationHandle, fresh
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput


async def growth(
    handles: Sequence[GenerationHandle], by_step: bool = True
) -> AsyncGenerator[list[RequestOutput], None]:
    """First the outputs of requests without what was generated, then what they gained since they
    were last told, until all have ended: outputs for `RequestOutput.add`, which have the ids of
    their requests and the sequences that gained, with only the new tokens, texts, logprobs and
    steps. ``prompt_logprobs`` come with the last of them. Nothing told changes afterwards.

    Steps that pass while the reader is busy are merged, so a slow reader costs neither memory nor
    the worker's time. ``by_step`` False: a request is told when it has ended. The handles need no
    ``streaming``.

    Raises:
        TrtspecError: a request failed, which is told before.
    """
    with ExitStack() as stack:
        changed = asyncio.Event()
        for handle in handles:
            stack.enter_context(handle.setting(changed))
        yield [_accepted(handle.output) for handle in handles]
        readers = [_Reader(handle, by_step) for handle in handles]
        while readers:
            changed.clear()
            gained = [output for reader in readers if (output := reader.read()) is not None]
            if gained:
                yield gained
            for reader in readers:
                if reader.error is not None:
                    raise fresh(reader.error)
            readers = [reader for reader in readers if not reader.ended]
            if readers and not gained:
                await changed.wait()


def _accepted(output: RequestOutput) -> RequestOutput:
    outputs = [CompletionOutput(each.index, each.seed) for each in output.outputs]
    return replace(output, outputs=outputs, prompt_logprobs=None)


class _Reader:
    """How far one request has been told."""

    def __init__(self, handle: GenerationHandle, by_step: bool) -> None:
        self.ended = False
        self.error: TrtspecError | None = None
        self._handle, self._by_step = handle, by_step
        self._told = [_Told() for _ in handle.output.outputs]

    def read(self) -> RequestOutput | None:
        """What is new, if anything."""
        with self._handle.updating():
            output = self._handle.output
            self.ended, self.error = output.finished, output.error
            if not (self._by_step or self.ended or self.error):
                return None
            pairs = zip(self._told, output.outputs, strict=True)
            gained = [each for told, completion in pairs if (each := told.tell(completion))]
            if not gained:
                return None
            logprobs = output.prompt_logprobs if self.ended else None
            return RequestOutput(
                *(output.request_id, None, [], gained),
                acceptance=output.acceptance,
                prompt_logprobs=logprobs,
            )


class _Told:
    """How far one sequence has been told."""

    def __init__(self) -> None:
        self._tokens = self._chars = self._steps = 0
        self._finished = False

    def tell(self, now: CompletionOutput) -> CompletionOutput | None:
        """What it gained."""
        tokens, text = now.token_ids[self._tokens :], now.text[self._chars :]
        if not (tokens or text or (now.finished and not self._finished)):
            return None
        gained = CompletionOutput(**vars(now))
        gained.token_ids, gained.text = tokens, text
        if now.logprobs is not None:
            gained.logprobs = now.logprobs[self._tokens :]
        if now.spec_steps is not None:
            gained.spec_steps = now.spec_steps[self._steps :]
            self._steps = len(now.spec_steps)
        gained.metrics = SpeculativeMetrics.merged([now.metrics])
        self._tokens, self._chars = len(now.token_ids), len(now.text)
        self._finished = now.finished
        return gained
