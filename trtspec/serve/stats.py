"""Heartbeat: logs one line about the whole server every few seconds while there is work."""

from __future__ import annotations

import time

from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.llm import LLM
from trtspec.serve.logs import log_event


class Heartbeat:
    """Reports the engine's figures relative to the previous beat."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._time = time.monotonic()
        self._load = llm.load()
        self._figures = llm.get_metrics()
        self._quiet = True

    def beat(self) -> None:
        """Log the time since the last beat. The first idle interval is logged too, then nothing
        until there is work again."""
        before, past, began = self._load, self._figures, self._time
        self._load, self._figures = self._llm.load(), self._llm.get_metrics()
        self._time = time.monotonic()
        load, seconds = self._load, max(self._time - began, 1e-6)
        prompt = load.num_prompt_tokens - before.num_prompt_tokens
        generated = load.num_generated_tokens - before.num_generated_tokens
        idle = not (prompt or generated or load.num_running or load.num_waiting)
        if idle and self._quiet:
            return
        self._quiet = idle
        interval = SpeculativeMetrics()
        old = past["histogram"]
        interval.histogram = [
            steps - (old[i] if i < len(old) else 0)
            for i, steps in enumerate(self._figures["histogram"])
        ]
        interval.num_draft_tokens = self._figures["num_draft_tokens"] - past["num_draft_tokens"]
        fields = {
            "running": load.num_running,
            "waiting": load.num_waiting,
            "generated_tokens_per_second": round(generated / seconds, 2),
            "prompt_tokens_per_second": round(prompt / seconds, 2),
            "acceptance_length": round(interval.acceptance_length, 3),
            "acceptance_rate": round(interval.acceptance_rate, 4),
            "kv_cache_usage": round(load.kv_cache_usage, 4),
        }
        speculation = ""
        if interval.num_draft_tokens:
            speculation = (
                f"acceptance length {interval.acceptance_length:.2f}, "
                f"rate {interval.acceptance_rate:.0%}, "
            )
        log_event(
            f"{load.num_running} running, {load.num_waiting} waiting, "
            f"{generated / seconds:.1f} tokens/s, {prompt / seconds:.1f} prompt tokens/s, "
            f"{speculation}KV cache {load.kv_cache_usage:.1%}",
            fields,
        )
