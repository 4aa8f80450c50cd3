"""LocalEngine: an `LLM` of this process, as the server sees engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor

from trtspec.errors import EngineError
from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.growth import growth
from trtspec.llmapi.handle import GenerationHandle
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.lora import LoRARequest
from trtspec.llmapi.outputs import EngineLoad, RequestOutput
from trtspec.serve.engine_client import EngineFacts, GenerateRequest, ReplicaFigures
from trtspec.serve.intake import Intake


class LocalEngine:
    """An `EngineClient` without copies or messages.

    Prompts are tokenised where requests are submitted, in the intake's thread. Grammars are
    compiled before that in another thread, so that they do not delay prompts without one.
    """

    def __init__(self, llm: LLM) -> None:
        self.intake = Intake(llm.prompts)
        self._llm = llm
        self._grammars = ThreadPoolExecutor(1, "trtspec-grammars")

    @property
    def facts(self) -> EngineFacts:
        llm = self._llm
        return EngineFacts(
            fingerprint=llm.config.fingerprints["engine"],
            limits=llm.limits,
            vocab_size=llm.config.target.vocab_size,
            draft_sources=tuple(m.method for m in llm.speculation.members)
            if llm.speculation
            else (),
        )

    @property
    def adapters(self) -> Mapping[str, str]:
        return self._llm.adapters.paths

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[RequestOutput], None]:
        if request.params.guided_decoding is not None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._grammars, self._llm.prepare, request.params)
        submitted = self.intake.run(self._submit, request)
        try:
            handles = await asyncio.shield(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(_abort_submitted)
            raise
        try:
            async with contextlib.aclosing(growth(handles, request.stream)) as gains:
                async for gained in gains:
                    yield gained
        finally:
            _abort(handles)

    async def check_health(self) -> None:
        fault = self._llm.fault
        if fault is not None:
            raise EngineError(*fault.args)

    async def load(self) -> EngineLoad:
        return self._llm.load()

    async def figures(self) -> ExecutorFigures:
        return self._llm.figures()

    async def replicas(self) -> ReplicaFigures | None:
        return None

    async def load_adapter(self, name: str, folder: str) -> None:
        await asyncio.to_thread(self._llm.adapters.load, name, folder)

    async def unload_adapter(self, name: str) -> None:
        self._llm.adapters.unload(name)

    def close(self) -> None:
        self._grammars.shutdown(wait=False, cancel_futures=True)
        self.intake.close()
        self._llm.shutdown()

    def _submit(self, request: GenerateRequest) -> list[GenerationHandle]:
        return self._llm.submit(
            request.rendered(self.intake.prompts),
            request.params,
            priority=request.priority,
            lora_request=None if request.adapter is None else LoRARequest(request.adapter),
        )


def _abort_submitted(submitted: asyncio.Future[list[GenerationHandle]]) -> None:
    with contextlib.suppress(Exception, asyncio.CancelledError):
        _abort(submitted.result())


def _abort(handles: list[GenerationHandle]) -> None:
    for handle in handles:
        if not handle.output.finished:
            handle.abort()
