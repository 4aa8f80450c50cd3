"""ModelEngine: one compiled model with its KV cache tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from trtspec.backends.cuda_graph import uncaptured
from trtspec.backends.inputs import EngineInputs
from trtspec.backends.packing import RowBatch, RowGroup, pack
from trtspec.backends.session import Session
from trtspec.backends.staging import Staging, to_host
from trtspec.executor.engines.buckets import (
    Bucket,
    RowBuckets,
    different_rows,
    extend,
    greedy_sampling,
    no_rows,
    pad,
    unpad,
)
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.engines.engine_parts import EngineSessions, NetworkFacts
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.engines.step_states import StateMoves, TakenNodes
from trtspec.executor.engines.verify_call import NOTHING_TO_VERIFY, VerifyInputs, VerifyOutputs
from trtspec.ops.sampling import SamplingColumns

_FIRST_STEP = StopRule(max_depth=1)


class ModelEngine(CountedEngine):
    """Runs a target or a draft: packs rows, owns the cache tensors, counts and times its calls.

    Rows are packed on the host and copied to the engine's device in one piece. With buckets, the
    calls of generating steps are padded: rollouts if the engine has one, otherwise forward calls.
    Calls over slot caches are padded in their sessions, slot by slot.
    """

    def __init__(
        self,
        network: NetworkFacts,
        sessions: EngineSessions,
        caches: KVTensors,
        buckets: RowBuckets | None = None,
    ) -> None:
        """``caches``: on the device of the sessions. ``buckets``: what calls are padded to; None:
        no padding."""
        super().__init__(caches.device)
        self.layout = caches.layout
        self.vocab_size = network.vocab_size
        self.verifies = network.verifies
        self.has_adapters = network.has_adapters
        self.hidden_width = network.hidden_in  # of the target's states that a draft reads
        self.caches = caches
        self._network = network
        self._sessions = sessions
        self._buckets = buckets
        self.buckets = buckets.all if buckets else ()  # none: calls are not padded
        self._padded_states: dict[Bucket, Tensor] = {}
        # Rows for a slot cache are padded on the host, and go to the device as they are then.
        is_slots = self.layout.is_slots
        self._row_staging = Staging(torch.device("cpu")) if is_slots else self._staging

    def forward(self, packed: RowBatch) -> tuple[Tensor, Tensor | None]:
        """Feed rows and write their K/V.

        Returns the float32 logits ``[R, V]`` of the wanted rows and, from a target that captures
        hidden states, those of all rows ``[T, n*H]``; both on the engine's device, valid until its
        next call.
        """
        bucket = self._find_bucket(packed, rolls_out=False)
        logits, hidden, _ = self._forward(packed, bucket, NOTHING_TO_VERIFY)
        return logits, hidden

    def verify(
        self, packed: RowBatch, asked: VerifyInputs
    ) -> tuple[Tensor, Tensor | None, VerifyOutputs]:
        """Like `forward`, and what the engine, if it ``verifies``, decides for the rows whose
        logits are wanted. ``asked``: the inputs for these rows."""
        bucket = self._find_bucket(packed, rolls_out=False)
        logits, hidden, verified = self._forward(packed, bucket, asked)
        return logits, hidden, VerifyOutputs(*verified)

    @property
    def rolls_first_step(self) -> bool:
        """Whether a rollout can stop after its first step."""
        passes = self._sessions.passes
        return passes.num_steps > 1 if passes else self._sessions.step is not None

    def feed(self, groups: Sequence[RowGroup], hidden: Tensor | None = None) -> None:
        """Write the K/V of a draft's rows; ``hidden [T, n*H]``: the target's hidden states, for a
        network that reads them."""
        model, passes = self._sessions.model, self._sessions.passes
        if passes is None and model is None:
            self._roll_out_groups(groups, greedy_sampling(len(groups)), hidden, _FIRST_STEP)
            return
        rows, last_rows, cached, states, *_ = pack(groups, self.layout)
        if passes is not None:  # the children of one row, as it wants those of some
            self._restore_states(groups)
            wanted = EngineInputs(last_rows=last_rows[-1:], columns=greedy_sampling(1))
            fed = wanted._replace(rows=rows, state_slots=states)
            self._run(passes.session, fed, cached, 1)
            self._keep_states(groups)
            return
        assert model is not None and hidden is not None, "what is fed apart reads states"
        inputs = EngineInputs(rows).placed(self._row_staging)
        self._run(model, inputs._replace(hidden_in=hidden), cached, 1)

    def rollout(
        self,
        groups: Sequence[RowGroup],
        sampling: Sequence[Tensor],
        hidden: Tensor | None = None,
        rule: StopRule = StopRule(),  # noqa: B008  it is frozen
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Feed accepted rows and draft after each request's last one.

        ``sampling`` holds the columns of `SamplingColumns`, one value per request; ``hidden [T,
        n*H]`` the target's hidden states of the rows, for a network that reads them. Returns
        ``tokens``, ``parents`` and ``scores``, each ``[B, N-1]`` (fewer if the ``rule`` stopped
        it), on the host.
        """
        outputs = self._roll_out_groups(groups, sampling, hidden, rule)
        tokens, parents, scores = to_host(outputs)
        return tokens, parents, scores

    def run_placed(self, inputs: EngineInputs) -> list[Tensor]:
        """A call, or with ``last_rows`` a rollout, over inputs that lie on the engine's device, as
        many as it is to have with padding. Returns all outputs of its session, there as well. A
        graph may include it; it is `counted` apart."""
        rolls_out = inputs.last_rows is not None
        session = self._sessions.rollout if rolls_out else self._sessions.model
        assert session is not None, "the engine has calls of this kind"
        return uncaptured(session).run(EngineInputs(*inputs[:-1], self.caches.all))

    def counted(
        self, call: Callable[[], list[Tensor]], bucket: Bucket, cached_tokens: int
    ) -> list[Tensor]:
        """Make a call that includes `run_placed`, once, and count it as one of that size."""
        passes = self._network.rollout_passes if self._sessions.drafts else 1
        kv_bytes = cached_tokens * self.caches.bytes_per_token
        return self._counted(call, bucket.rows, kv_bytes, passes, bucket)

    @property
    def rolls_out_at_once(self) -> bool:
        """Whether a whole rollout is one call."""
        return self._sessions.rollout is not None

    def compact(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Move K/V rows of every layer from ``src_slots`` to ``dst_slots`` (int64, on the host);
        see `KVTensors.compact`."""
        source, wanted = self._staging.to_device([src_slots, dst_slots])
        self.caches.compact(source, wanted)

    def move_states(self, moves: StateMoves) -> None:
        """Apply nodes of the last `forward` or `verify` to the requests' states, and make
        snapshots."""
        self._replay(moves.before)
        if len(moves.source):
            self.copy_states(moves.source, moves.wanted)
        self._replay(moves.behind)

    def copy_states(self, source: Tensor, wanted: Tensor) -> None:
        """Copy states between slots, int64 [n] on the host; no slot is in both."""
        self.caches.copy_states(*self._staging.to_device([source, wanted]))

    def warm_up(self) -> None:
        """Run every bucket once, with padding only, the largest first, so that sessions with graphs
        have captured all of them. Nothing of a request is written, nothing is counted or timed."""
        for bucket in reversed(self._buckets.all if self._buckets else ()):
            self._run_padding(bucket)
            if self.rolls_first_step:
                self._run_padding(bucket, _FIRST_STEP)
        self._reset_count()

    def release(self) -> None:
        self._sessions = EngineSessions()
        self._padded_states.clear()
        self.caches.release()

    def time_call(self, requests: int, rows: int) -> float:
        """See `CountedEngine.time_call`; times a rollout if there is one, otherwise a forward
        call."""
        bucket = self.step_bucket(requests, rows)
        began = time.perf_counter()
        self._run_padding(bucket)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - began
        self._reset_count()
        return seconds

    def padded_rows(self, requests: int, rows: int) -> int:
        return self.step_bucket(requests, rows).rows

    def context_share(self, tokens: int) -> float:
        return tokens * self.caches.bytes_per_token / max(self._network.pass_bytes.always, 1)

    def _replay(self, taken: TakenNodes) -> None:
        if not len(taken.state_slots):
            return
        assert self._sessions.replay is not None, "the target was opened without its replay"
        slots, rows, start = self._staging.to_device(taken)
        inputs = EngineInputs(state_slots=slots, logits_rows=rows, row_start=start)
        self._sessions.replay.run(inputs._replace(caches=self.caches.all))

    def step_bucket(self, requests: int, rows: int, logits: int | None = None) -> Bucket:
        """What a call of that size runs as; by default one of a generating step."""
        if logits is None:
            logits = 0 if self._sessions.drafts else rows
        found = self._buckets.find(requests, rows, logits) if self._buckets else None
        return found or Bucket(requests, rows, logits)

    def _run_padding(self, bucket: Bucket, rule: StopRule = StopRule()) -> None:  # noqa: B008
        """A call of that size without requests. A spare state is updated with its rows, as
        requests' states are, since that takes time."""
        rows = different_rows(pad(no_rows(self.layout), bucket), self._network.vocab_size)
        padding = RowBatch(rows, torch.zeros(0, dtype=torch.int64), 0)
        if self.caches.keeps_states:
            rows.query_start[-1] = bucket.rows  # all are of the last one
            slots = torch.full((bucket.requests,), -1, dtype=torch.int32)
            slots[-1] = self.caches.spare_state
            padding = padding._replace(state_slots=slots)
        if not self._sessions.drafts:
            self._forward(padding, bucket, NOTHING_TO_VERIFY)
            return
        width = self._network.hidden_in
        zeros = torch.zeros((0, width), dtype=self.caches.dtype, device=self._device)
        hidden = zeros if width else None
        self._roll_out(padding, greedy_sampling(0), hidden, bucket, rule)

    def _forward(
        self, packed: RowBatch, bucket: Bucket | None, asked: VerifyInputs
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Logits, hidden states if any, and the decisions of an engine that verifies."""
        rows, logits_rows, cached_tokens, slots, adapters = packed
        # A compiled engine wants at least one logits row; the middle of a prefill wants none.
        wanted = bucket.logits if bucket else max(logits_rows.shape[0], 1)
        inputs = EngineInputs(
            rows=rows if bucket is None else pad(rows, bucket),
            logits_rows=extend(logits_rows, wanted, 0),
        )
        if self.caches.keeps_states:
            held = torch.zeros(0, dtype=torch.int32) if slots is None else slots
            requests = bucket.requests if bucket else len(rows.context_lens)
            inputs = inputs._replace(state_slots=extend(held, requests, -1))
        if self.has_adapters:
            held = torch.zeros(0, dtype=torch.int32) if adapters is None else adapters
            count = bucket.rows if bucket else len(rows.input_ids)
            inputs = inputs._replace(adapters=extend(held, count, -1))
        counts = [logits_rows.shape[0], rows.input_ids.shape[0]]
        count = asked.row_start.shape[0] - 1
        if self.verifies:
            requests = bucket.requests if bucket else count
            starts = asked.row_start
            inputs = inputs._replace(
                columns=SamplingColumns._make(extend(x, wanted, 0) for x in asked.columns),
                parents=extend(asked.parents, wanted, 0),
                row_start=extend(starts, requests + 1, int(starts[-1])),
            )
        inputs = inputs.placed(self._row_staging, stable=bucket is not None)
        assert self._sessions.model is not None, "a draft may have no forward call"
        outputs = self._run(self._sessions.model, inputs, cached_tokens, 1, bucket)
        verified: list[Tensor] = []
        if self.verifies:
            *outputs, sampled, accepted, emitted = outputs
            sizes = [len(asked.parents), count, count]
            verified = unpad([sampled, accepted, emitted], sizes)
        if wanted != counts[0] or bucket is not None:
            outputs = unpad(outputs, counts[: len(outputs)])
        logits, *hidden = outputs
        return logits, hidden[0] if hidden else None, verified

    def _roll_out_groups(
        self,
        groups: Sequence[RowGroup],
        sampling: Sequence[Tensor],
        hidden: Tensor | None,
        rule: StopRule,
    ) -> list[Tensor]:
        packed = pack(groups, self.layout)
        bucket = self._find_bucket(packed, rolls_out=True)
        self._restore_states(groups)
        outputs = self._roll_out(packed, sampling, hidden, bucket, rule)
        self._keep_states(groups)  # only the first pass stepped the requests' own
        return outputs

    def _restore_states(self, groups: Sequence[RowGroup]) -> None:
        """Restore the states of requests that begin on snapshots."""
        states = [group.state for group in groups if group.state is not None]
        self._copy((state.source, state.slot) for state in states if state.source >= 0)

    def _keep_states(self, groups: Sequence[RowGroup]) -> None:
        """Copy states that have reached the position of a snapshot."""
        states = [group.state for group in groups if group.state is not None]
        self._copy((state.slot, state.snapshot) for state in states if state.snapshot >= 0)

    def _copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy states between slots."""
        moves = torch.tensor([*pairs], dtype=torch.int64)
        if len(moves):
            self.copy_states(*moves.T)

    def _roll_out(
        self,
        packed: RowBatch,
        sampling: Sequence[Tensor],
        hidden: Tensor | None,
        bucket: Bucket | None,
        rule: StopRule,
    ) -> list[Tensor]:
        rows, last_rows, cached_tokens, states, *_ = packed
        session: Session | None = self._sessions.rollout
        passes, loop = self._network.rollout_passes, self._sessions.passes
        if loop is not None:
            session, passes, loop.rule = loop, 1, rule
        elif rule.max_depth == 1 and self._sessions.step is not None:
            session, passes = self._sessions.step, 1
        if session is None:
            raise RuntimeError("this engine was loaded without such a rollout")
        count = len(last_rows)
        columns = SamplingColumns._make(sampling)
        if bucket is not None:
            rows, last_rows = pad(rows, bucket), extend(last_rows, bucket.requests, 0)
            columns = SamplingColumns._make(extend(x, bucket.requests, 0) for x in columns)
            hidden = self._pad_states(hidden, bucket)
            states = None if states is None else extend(states, bucket.requests, -1)
        inputs = EngineInputs(rows, states, last_rows=last_rows, columns=columns)
        if self.layout.is_slots:
            placed = SamplingColumns._make(self._staging.to_device(columns))
            inputs = inputs._replace(columns=placed)
        else:
            inputs = inputs.placed(self._staging, stable=bucket is not None)
        inputs = inputs._replace(hidden_in=hidden)
        outputs = self._run(session, inputs, cached_tokens, passes, bucket)
        return outputs if bucket is None else unpad(outputs, [count] * 3)

    def _find_bucket(self, packed: RowBatch, rolls_out: bool) -> Bucket | None:
        """The bucket for packed rows, if calls of this kind are padded here."""
        is_padded = rolls_out == self._sessions.drafts
        if self._buckets is None or self.layout.is_slots or not is_padded:
            return None
        rows, num_logits = packed.rows, 0 if rolls_out else len(packed.logits_rows)
        return self._buckets.find(len(rows.context_lens), len(rows.input_ids), num_logits)

    def _pad_states(self, hidden: Tensor | None, bucket: Bucket) -> Tensor | None:
        """The hidden states in memory at a fixed address, followed by zeros."""
        if hidden is None:
            return None
        padded = self._padded_states.get(bucket)
        if padded is None:
            padded = hidden.new_empty((bucket.rows, hidden.shape[1]))
            self._padded_states[bucket] = padded
        padded[: len(hidden)] = hidden
        padded[len(hidden) :] = 0
        return padded

    def _run(
        self,
        session: Session,
        inputs: EngineInputs,
        cached_tokens: int,
        passes: int,
        bucket: Bucket | None = None,
    ) -> list[Tensor]:
        assert inputs.rows is not None, "a pass has rows"
        rows = inputs.rows.input_ids.shape[0]
        kv_bytes = cached_tokens * self.caches.bytes_per_token
        if inputs.state_slots is not None:
            kv_bytes += len(inputs.state_slots) * self.caches.bytes_per_state
        given = EngineInputs(*inputs[:-1], self.caches.all)
        outputs = self._counted(lambda: session.run(given), rows, kv_bytes, passes, bucket)
        if session is self._sessions.passes:
            more = self._sessions.passes.num_passes - 1
            self.num_calls += more
            self.weight_bytes += more * self._network.pass_bytes.always
            self.kv_bytes += more * kv_bytes
        return outputs

    def _counted(
        self,
        call: Callable[[], list[Tensor]],
        rows: int,
        kv_bytes: int,
        passes: int,
        bucket: Bucket | None,
    ) -> list[Tensor]:
        reads = self._network.pass_bytes
        of_experts = reads.of_experts(rows) if reads.mixtures else 0
        read = passes * reads.always, passes * kv_bytes, passes * of_experts
        return self._call(call, *read, bucket)
