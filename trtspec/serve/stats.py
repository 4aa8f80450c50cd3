"""Heartbeat: logs one line about the whole server every few seconds while there is work."""

from __future__ import annotations

import time
from itertools import zip_longest

from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.outputs import EngineLoad
from trtspec.serve.logs import log_event


class Heartbeat:
    """Reports the engine's figures relative to the previous beat."""

    def __init__(self, load: EngineLoad, figures: ExecutorFigures) -> None:
        self._time = time.monotonic()
        self._load, self._total = load, figures.speculation
        self._quiet = True

    def beat(self, load: EngineLoad, figures: ExecutorFigures) -> None:
        """Log the time since the last beat. The first idle interval is logged too, then nothing
        until there is work again."""
        before, past, began = self._load, self._total, self._time
        self._load, self._total = load, figures.speculation
        self._time = time.monotonic()
        seconds = max(self._time - began, 1e-6)
        prompt = load.num_prompt_tokens - before.num_prompt_tokens
        generated = load.num_generated_tokens - before.num_generated_tokens
        idle = not (prompt or generated or load.num_running or load.num_waiting)
        if idle and self._quiet:
            return
        self._quiet = idle
        interval = SpeculativeMetrics()
        pairs = zip_longest(self._total.histogram, past.histogram, fillvalue=0)
        interval.histogram = [steps - old for steps, old in pairs]
        interval.num_draft_tokens = self._total.num_draft_tokens - past.num_draft_tokens
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
