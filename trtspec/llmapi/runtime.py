"""Opens an engine folder as a running executor: sessions, caches, engines and drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trtspec.backends.cuda_graph import CudaGraphSession
from trtspec.backends.device import visible_gpus
from trtspec.backends.session import Session
from trtspec.backends.shape import TARGET
from trtspec.config.cuda_graph import CudaGraphConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.distributed.cores import kept_to_share
from trtspec.distributed.followers import Followers, LedSession
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import MODEL, REPLAY
from trtspec.engine.open import OpenDraft, OpenSessions, WeightReader, open_sessions, verifies
from trtspec.errors import ConfigError
from trtspec.executor.engines.adapter_pool import AdapterPool
from trtspec.executor.engines.buckets import RowBuckets
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.engines.engine_parts import EngineSessions, NetworkFacts
from trtspec.executor.engines.heads_engine import HeadsEngine
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.pass_rollout import PassRollout
from trtspec.executor.executor_metrics import ExecutorMetrics
from trtspec.executor.overlap import Overlap
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.schedule.adapter_scheduler import AdapterScheduler
from trtspec.executor.schedule.led_caches import LedCaches, call_name
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.schedule.scheduler import Order, Scheduler
from trtspec.executor.step.acceptance_rule import AcceptanceRule
from trtspec.executor.step.drafter import DraftCacheNeeds, Drafter, DrafterNeeds, NoDrafter
from trtspec.executor.step.simulation import SimulatedAcceptance
from trtspec.executor.step.typical import TypicalAcceptance
from trtspec.llmapi.cache_sizes import CacheSizes, draft_tensors
from trtspec.llmapi.limits import Limits
from trtspec.llmapi.rank import OPEN, RANK_PROGRAM
from trtspec.llmapi.resources import open_resources
from trtspec.llmapi.steps_ahead import resident_target
from trtspec.log import logger
from trtspec.ops.kv_cache import KVCache
from trtspec.speculative.base import Steps
from trtspec.speculative.draft_kind import DRAFT_MODEL, DRAFT_PASS, DRAFT_ROLLOUT, DRAFT_STEP
from trtspec.speculative.draft_runtime import DraftRuntime
from trtspec.speculative.registry import drafter_needs, make_drafter


@dataclass(frozen=True)
class Runtime:
    """An opened engine folder: its executor, the target's engine and the drafts. followers: the
    other ranks of a target that is split over several."""

    executor: PyExecutor
    target: ModelEngine
    drafts: tuple[DraftRuntime, ...]
    followers: Followers | None = None

    def close(self) -> None:
        """Free weights and caches, whoever still holds the executor; its metrics stay readable."""
        self.executor.close()
        for engine in (self.target, *(draft.engine for draft in self.drafts)):
            engine.release()
        if self.followers is not None:
            self.followers.close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what torch keeps for itself nobody else can have


def open_runtime(
    folder: Path,
    engine: EngineConfig,
    drafts: Sequence[EngineDraft],
    limits: Limits,
    speculation: DecodingConfig | None,
    kv: KvCacheConfig,
    graphs: CudaGraphConfig | None = None,
    async_scheduling: bool = False,
    steps_ahead: int = 0,
    wrap_drafter: Callable[[Drafter], Drafter] = lambda drafter: drafter,
    order: Order | None = None,
    weights: WeightReader | None = None,
) -> Runtime:
    """Load an engine folder.

    ``drafts``: those that ``speculation`` uses, in the order of its members. ``graphs``: the sizes
    to which the calls of generating steps are padded, and on CUDA captured; None: neither.
    ``async_scheduling``: the executor may do other work while engines run. ``steps_ahead``: steps
    that are launched before the result of one is read. ``wrap_drafter``: wraps
    the drafter that the executor asks. ``order``: the admission policy; None: first come, first
    served. ``weights``: see `open_sessions`.

    Raises:
        ConfigError: the drafts need more rows than the engine was built for, or no step can be
            launched ahead of the last one's result.
        EngineError: files are missing or damaged, the caches do not fit into memory, or a rank
            could not open its part.
    """
    with ExitStack() as undo:
        followers = _followers(folder, engine, drafts)
        if followers is not None:
            undo.callback(followers.close)
            if engine.build.device == "cuda" and graphs is not None:
                raise ConfigError(
                    f"calls of {engine.target.ranks} GPUs are not captured in CUDA graphs in this "
                    "version; write cuda_graph_config=False"
                )
        needs = _needs(engine, drafts, speculation)
        padding = _Padding.of(graphs, limits, needs)
        group = None if followers is None else followers.group
        # Weights lie at the memory of the cores that read them.
        with nullcontext() if group is None else kept_to_share(group.rank, group.ranks):
            sessions = open_sessions(folder, engine, drafts, padding.inner_sizes, weights, group)
        if followers is not None:
            followers.meet()
            if engine.build.device == "cuda":
                followers.meet_on_gpus()
        # The weights are loaded by now: the caches get memory that they leave.
        resources = open_resources(engine, drafts, limits, needs, kv)
        books, sizes = resources.target, engine.build.adapters
        pool = AdapterPool(sessions.adapted, 0 if sizes is None else sizes.number)
        target = _target(engine, books, limits, sessions, padding.target, followers)
        caches = iter(resources.draft_caches)
        runtimes = tuple(
            _draft(
                engine,
                draft,
                target,
                next(caches) if draft.plan.has_cache else None,
                limits.max_batch_size,
                padding,
                followers if draft.plan.network.ranks > 1 else None,
            )
            for draft in sessions.drafts
        )
        if engine.build.device == "cuda":
            _capture_graphs([target, *(draft.engine for draft in runtimes)], padding.drafts)
        drafter: Drafter = NoDrafter()
        rule = skips = None
        if speculation is not None:
            steps = Steps(target, limits.max_batch_size, limits.max_num_tokens)
            made = make_drafter(speculation, runtimes, steps)
            drafter, skips = wrap_drafter(made), made.skips_drafts
            rule = _acceptance_rule(speculation)
        rows = limits.max_batch_size, limits.max_num_tokens, limits.max_seq_len
        plans = resources, *rows, needs, skips, order
        scheduler = Scheduler(*plans) if sizes is None else AdapterScheduler(pool, *plans)
        engines = [draft.engine for draft in runtimes]
        overlap = _overlap([target, *engines], engine.build.device) if async_scheduling else None
        metrics = ExecutorMetrics(target, engines, overlap, drafter)
        resident = None
        if steps_ahead:
            asked = steps_ahead, engine, target, drafter, speculation, limits.max_batch_size
            resident = resident_target(*asked)
        executor = PyExecutor(
            *(target, resources, scheduler, drafter, rule, metrics, overlap, resident, steps_ahead)
        )
        undo.pop_all()
        return Runtime(executor, target, runtimes, followers)


def _followers(
    folder: Path, engine: EngineConfig, drafts: Sequence[EngineDraft]
) -> Followers | None:
    """The other ranks of a target that is split, and of those drafts that are, too."""
    ranks, split = engine.target.ranks, (each.folder for each in drafts if each.network.ranks > 1)
    if ranks == 1:
        return None
    gpus = visible_gpus(ranks) if engine.build.device == "cuda" else ()
    return Followers(RANK_PROGRAM, ranks, [str(folder), *split], gpus)


def _needs(
    engine: EngineConfig, drafts: Sequence[EngineDraft], speculation: DecodingConfig | None
) -> DrafterNeeds:
    """What the drafter needs with these drafts. A draft may be cut to fewer steps, but its engine
    always rolls out all steps that it was built for."""
    if speculation is None:
        return DrafterNeeds()
    needs = drafter_needs(speculation)
    cached = [draft for draft in drafts if draft.has_cache]
    caches = (_as_built(*pair) for pair in zip(needs.caches, cached, strict=True))
    needs = replace(needs, caches=tuple(caches))
    if needs.max_nodes + 1 > engine.speculative_rows:
        raise ConfigError(
            f"the drafts need {needs.max_nodes + 1} rows a step, the engine was built for "
            f"{engine.speculative_rows}; lower the draft length to {engine.speculative_rows - 1}"
            + (" or rebuild the engine for it" if drafts else "")
        )
    return needs


def _as_built(cache: DraftCacheNeeds, draft: EngineDraft) -> DraftCacheNeeds:
    return replace(cache, slots=draft.slots, lookahead=draft.lookahead)


@dataclass(frozen=True)
class _Padding:
    """What calls are padded to. inner_sizes: batch sizes for sessions that pad and capture their
    calls themselves."""

    inner_sizes: Sequence[int] = ()
    target: RowBuckets | None = None
    drafts: RowBuckets | None = None

    @classmethod
    def of(cls, graphs: CudaGraphConfig | None, limits: Limits, needs: DrafterNeeds) -> _Padding:
        sizes = graphs.sizes(limits.max_batch_size) if graphs else ()
        if graphs is None or not sizes:
            return cls()
        pads = graphs.enable_padding
        # A draft is fed the accepted rows of a step, whichever drafter made them, and the rows that
        # were not final when they were fed before.
        again = max([0, *(cache.lookahead - 1 for cache in needs.caches)])
        return cls(
            sizes if pads else (),
            RowBuckets(sizes, 1 + needs.max_nodes, pads),
            RowBuckets(sizes, 1 + needs.max_depth + again, pads, rolls_out=True),
        )


def _target(
    engine: EngineConfig,
    books: KVCache,
    limits: Limits,
    sessions: OpenSessions,
    buckets: RowBuckets | None,
    followers: Followers | None,
) -> ModelEngine:
    network = NetworkFacts(
        engine.target.vocab_size,
        pass_bytes=engine.pass_bytes(),
        verifies=verifies(engine),
        has_adapters=engine.build.adapters is not None,
    )
    graphs = {MODEL: _with_graphs(sessions.target, engine, buckets)}
    if sessions.replay is not None:
        graphs[REPLAY] = sessions.replay
    padded = [bucket.rows for bucket in buckets.all] if buckets else []
    sizes = CacheSizes.of(books, max([limits.max_num_tokens, *padded]))
    caches = sizes.caches(engine, engine.target)
    if followers is not None:
        graphs = _led(TARGET, sizes, graphs, followers)
        caches = LedCaches.of(caches, TARGET, followers)
    own = EngineSessions(graphs[MODEL], graphs.get(REPLAY))
    return ModelEngine(network, own, caches, buckets)


def _led(
    network: str, sizes: CacheSizes | None, graphs: Mapping[str, Session], followers: Followers
) -> dict[str, Session]:
    """The sessions of a network whose calls all ranks make, once each has its caches; ``sizes``: of
    those that are the network's own."""
    followers.tell(OPEN, (network, sizes))
    return {
        name: LedSession(call_name(network, name), session, followers)
        for name, session in graphs.items()
    }


def _draft(
    engine: EngineConfig,
    opened: OpenDraft,
    target: ModelEngine,
    cache: DraftCache | None,
    max_batch_size: int,
    padding: _Padding,
    followers: Followers | None,
) -> DraftRuntime:
    """``followers``: of a draft that is split as its target is."""
    plan, sizes = opened.plan, None
    if cache is not None:
        scratch = plan.scratch_states(max_batch_size)
        sizes = CacheSizes.of(cache.books, num_scratch=scratch)
    tensors = draft_tensors(engine, plan, target.caches, sizes)
    if followers is not None:
        led = _led(plan.folder, sizes, opened.sessions, followers)
        opened = replace(opened, sessions=led)
        if tensors is not None:
            tensors = LedCaches.of(tensors, plan.folder, followers)
    made = _draft_engine(engine, opened, tensors, padding.drafts)
    states, longest = engine.states_of(plan), plan.longest
    return DraftRuntime(plan.folder, plan.network, made, cache, states, longest)


def _draft_engine(
    engine: EngineConfig, opened: OpenDraft, caches: KVTensors | None, buckets: RowBuckets | None
) -> ModelEngine | HeadsEngine:
    network, sessions = opened.plan.network, opened.sessions
    pass_bytes = engine.pass_bytes(opened.plan)
    if caches is None:
        return HeadsEngine(sessions[DRAFT_ROLLOUT], engine.build.device, pass_bytes.always)
    decoder = network.decoder or engine.target
    facts = NetworkFacts(
        decoder.vocab_size,
        pass_bytes=pass_bytes,
        rollout_passes=opened.rollout_passes,
        hidden_in=len(network.capture_layers) * engine.target.hidden_size,
    )
    if DRAFT_PASS in sessions:
        tree, size = opened.plan.speculation.tree, engine.layout.tokens_per_block
        passes = PassRollout(sessions[DRAFT_PASS], tree, size, caches)
        own = EngineSessions(passes=passes)
        return ModelEngine(facts, own, caches)
    step = sessions.get(DRAFT_STEP)
    own = EngineSessions(
        sessions.get(DRAFT_MODEL),
        rollout=_with_graphs(sessions[DRAFT_ROLLOUT], engine, buckets),
        step=None if step is None else _with_graphs(step, engine, buckets),
    )
    return ModelEngine(facts, own, caches, buckets)


def _with_graphs(session: Session, engine: EngineConfig, buckets: RowBuckets | None) -> Session:
    """The session; on CUDA with graphs for the buckets, unless it captures its calls itself."""
    if engine.build.device == "cpu" or engine.backend.captures_calls or buckets is None:
        return session
    sizes = {(bucket.rows, bucket.requests, bucket.logits) for bucket in buckets.all}
    return CudaGraphSession(session, sizes)


def _capture_graphs(engines: Sequence[CountedEngine], buckets: RowBuckets | None) -> None:
    """Capture all graphs now, so that no request waits for it."""
    if buckets is None:
        return
    began = time.perf_counter()
    for engine in engines:
        engine.warm_up()
    sizes = ", ".join(str(size) for size in sorted({bucket.requests for bucket in buckets.all}))
    logger.info(
        "CUDA graphs for batches of %s captured in %.1f s", sizes, time.perf_counter() - began
    )


def _overlap(engines: Sequence[CountedEngine], device: str) -> Overlap:
    """The thread that works while these engines run."""
    overlap = Overlap(calls_wait=device == "cpu")
    for engine in engines:
        engine.before_call = overlap.begin
    return overlap


def _acceptance_rule(speculation: DecodingConfig) -> AcceptanceRule | None:
    """The rule that replaces lossless acceptance, if one was requested."""
    rates, typical = speculation.simulate_acceptance, speculation.typical_acceptance
    if rates is not None:
        logger.warning(
            "simulate_acceptance=%s: drafts are accepted by chance, the text means nothing",
            list(rates),
        )
        return SimulatedAcceptance(rates)
    if typical is not None:
        logger.warning(
            "lossy_typical_acceptance (posterior_threshold %s, posterior_alpha %s): above "
            "temperature 0 the text is not the model's own",
            typical.posterior_threshold,
            typical.posterior_alpha,
        )
        return TypicalAcceptance(typical)
    return None
