"""Prometheus metrics: vLLM's names after the prefix, where they mean the same.

The engine's counters are those of each scrape; only times and sizes of requests are kept here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from trtspec.executor.executor_metrics import ExecutorFigures
from trtspec.llmapi.outputs import EngineLoad, RequestOutput
from trtspec.serve.engine_client import ReplicaFigures

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_QUEUE_SECONDS = (0.001, *_SECONDS)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_TOKENS = tuple(2**i for i in range(18))


class ServerMetrics:
    """The metrics of one server and its engine."""

    def __init__(self, prefix: str, model: str) -> None:
        self._prefix, self._model = prefix, model
        self._registry = CollectorRegistry()
        self._engine = _EngineCollector(prefix, model)
        self._registry.register(self._engine)
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token", _SECONDS
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "Wait for the first step of a sequence", _QUEUE_SECONDS
        )
        self._latency = self._histogram(
            "e2e_request_latency_seconds", "Arrival to last token", _SECONDS
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds",
            "First to last token of a sequence, per token after the first",
            _TOKEN_SECONDS,
        )
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._generated = self._histogram(
            "request_generation_tokens", "Tokens generated for a sequence", _TOKENS
        )
        self._success = Counter(
            f"{prefix}:request_success",
            "Sequences that ended, by how",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._http = Counter(
            "http_requests",
            "Answers by path and status",
            ["method", "handler", "status"],
            registry=self._registry,
        )

    def http(self, method: str, handler: str, status: int) -> None:
        self._http.labels(method, handler, str(status)).inc()

    def finished(self, outputs: Sequence[RequestOutput], arrival: float) -> None:
        """Record the end of a request that arrived at `arrival` (of `time.monotonic`)."""
        for output in outputs:
            self._prompt.labels(self._model).observe(len(output.prompt_token_ids))
            for completion in output.outputs:
                first, last = completion.first_token_time, completion.finish_time
                tokens = len(completion.token_ids)
                self._success.labels(self._model, completion.finish_reason or "abort").inc()
                self._generated.labels(self._model).observe(tokens)
                if completion.queue_time is not None:
                    self._queue.labels(self._model).observe(completion.queue_time)
                if first is None or last is None:
                    continue
                self._first_token.labels(self._model).observe(first - arrival)
                self._latency.labels(self._model).observe(last - arrival)
                if tokens > 1:
                    self._per_token.labels(self._model).observe((last - first) / (tokens - 1))

    def exposition(
        self,
        load: EngineLoad | None = None,
        figures: ExecutorFigures | None = None,
        replicas: ReplicaFigures | None = None,
    ) -> bytes:
        """The metrics in Prometheus' text format, with these of the engine if it is open."""
        self._engine.load, self._engine.figures = load, figures
        self._engine.replicas = replicas
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"{self._prefix}:{name}",
            text,
            ["model_name"],
            buckets=buckets,
            registry=self._registry,
        )


class _EngineCollector(Collector):
    """The engine's figures as of one scrape."""

    load: EngineLoad | None = None
    figures: ExecutorFigures | None = None
    replicas: ReplicaFigures | None = None

    def __init__(self, prefix: str, model: str) -> None:
        self._prefix, self._model = prefix, model

    def collect(self) -> Iterator[Metric]:
        if self.load is None or self.figures is None:
            return
        load, figures = self.load, self.figures.to_dict()
        yield self._gauge("num_requests_running", "Sequences in the batch", load.num_running)
        yield self._gauge("num_requests_waiting", "Sequences in the queue", load.num_waiting)
        yield self._gauge(
            "kv_cache_usage_perc", "Part of the KV cache in use, 0 to 1", load.kv_cache_usage
        )
        yield self._gauge(
            "spec_decode_acceptance_length",
            "Tokens emitted per verify step (accepted drafts + 1) since the start",
            figures["acceptance_length"],
        )
        yield self._gauge(
            "spec_decode_acceptance_rate",
            "Accepted per drafted token since the start",
            figures["acceptance_rate"],
        )
        counters = {
            "prompt_tokens": ("Prompt tokens fed", load.num_prompt_tokens),
            "generation_tokens": ("Tokens generated", load.num_generated_tokens),
            "spec_decode_num_drafts": ("Verify steps with a draft", figures["num_drafts"]),
            "spec_decode_num_draft_tokens": ("Draft tokens", figures["num_draft_tokens"]),
            "spec_decode_num_accepted_tokens": (
                "Draft tokens accepted and emitted",
                figures["num_accepted_tokens"],
            ),
            "spec_decode_num_texts_over_draft": (
                "Requests whose texts became too long for a draft",
                figures["num_texts_over_draft"],
            ),
            "num_preemptions": (
                "Requests that lost their blocks and were computed again",
                figures["num_preemptions"],
            ),
            "prefix_cache_queries": (
                "Prompt tokens looked for in the prefix cache",
                figures["num_prefix_cache_queries"],
            ),
            "prefix_cache_hits": (
                "Prompt tokens found in the prefix cache",
                figures["num_prefix_cache_hits"],
            ),
            "engine_steps": ("Executor steps", figures["num_engine_steps"]),
            "engine_failed_steps": ("Executor steps that failed", figures["num_failed_steps"]),
            "engine_target_seconds": ("Time in the target", figures["target_ms"] / 1e3),
            "engine_draft_seconds": ("Time in the draft", figures["draft_ms"] / 1e3),
            "engine_host_seconds": ("Time of steps outside both", figures["host_ms"] / 1e3),
            "engine_overlap_seconds": ("Work done during calls", figures["overlap_ms"] / 1e3),
        }
        for name, (text, value) in counters.items():
            yield self._counter(name, text, value)
        if self.replicas is not None:
            yield from self._of_replicas(self.replicas)
        yield self._by(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted at a depth, the first one being 0",
            "position",
            figures["num_accepted_tokens_per_pos"],
        )
        yield self._by(
            "spec_decode_num_drafts_per_pos",
            "Verify steps that drafted so deep, the first depth being 0",
            "position",
            figures["num_drafts_per_pos"],
        )
        yield self._by(
            "spec_decode_num_draft_tokens_per_source",
            "Draft tokens by the member of a union that proposed them, the first one being 0",
            "source",
            figures["num_draft_tokens_per_source"],
        )
        yield self._by(
            "spec_decode_num_accepted_tokens_per_source",
            "Draft tokens accepted by the member of a union that proposed them",
            "source",
            figures["num_accepted_tokens_per_source"],
        )
        yield self._labelled(
            "spec_decode_draft_alarm",
            "1 while a draft is hardly accepted, which was warned of, else 0",
            "draft",
            _highest(figures["drafts"], "alarm"),
        )
        yield self._labelled(
            "spec_decode_draft_token_cost",
            "Time of a drafted token as a part of a step of the target, as measured at the start",
            "draft",
            _highest(figures["drafts"], "token_cost"),
        )
        for figure in ("acceptance_length", "acceptance_rate"):
            yield self._labelled(
                f"spec_decode_adapter_{figure}",
                f"The {figure.replace('_', ' ')} of requests with an adapter, since the start",
                "lora_name",
                {name: found[figure] for name, found in figures["adapters"].items()},
            )
        yield self._by(
            "spec_decode_steps",
            "Verify steps by the number of draft tokens they accepted",
            "accepted",
            figures["histogram"],
        )

    def _of_replicas(self, replicas: ReplicaFigures) -> Iterator[Metric]:
        loads = replicas.loads
        yield self._gauge("replicas_up", "Replicas that answer", len(loads))
        yield self._counter("replicas_started", "Replicas that ever were", replicas.num_started)
        yield self._counter(
            "requests_resent",
            "Requests sent to another replica, as theirs was lost before the first token",
            replicas.num_resent,
        )
        yield self._counter(
            "requests_lost", "Requests that failed with their replica", replicas.num_lost
        )
        for name, text, values in (
            ("running", "Sequences in the batch", {r: of.num_running for r, of in loads.items()}),
            ("waiting", "Sequences in the queue", {r: of.num_waiting for r, of in loads.items()}),
        ):
            yield self._labelled(
                f"replica_num_requests_{name}", f"{text} of a replica", "replica", values
            )

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _labelled(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        labels = ["model_name", label]
        family = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=labels)
        for key, value in values.items():
            family.add_metric([self._model, key], value)
        return family

    def _by(self, name: str, text: str, label: str, values: Sequence[int]) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=["model_name", label])
        for index, value in enumerate(values):
            family.add_metric([self._model, str(index)], value)
        return family


def _highest(drafts: Sequence[Mapping[str, Any]], figure: str) -> dict[str, float]:
    """The highest of a figure by draft, which each replica of an engine reports."""
    found: dict[str, float] = {}
    for each in drafts:
        if each[figure] is not None:
            found[each["draft"]] = max(found.get(each["draft"], 0.0), float(each[figure]))
    return found
