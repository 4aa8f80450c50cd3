"""Builds an engine folder from a plan: weights, compiled graphs, tokenizer, contract, rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_converters import Checkpoint, DraftCheckpoint
from trtspec.backends.shape import TARGET, WEIGHTS_NAME
from trtspec.builder.accuracy import cache_report, draft_report, rounding_report, text_report
from trtspec.builder.cache_support import cache_dtype_of
from trtspec.builder.checkpoints import load_target
from trtspec.builder.draft_weights import require_weights
from trtspec.builder.graph_cache import place_graphs
from trtspec.builder.locate import CACHE_VARIABLE, cache_root, require_cache
from trtspec.builder.packed_weights import (
    copy_packed,
    packed_key,
    recall_lines,
    remember_lines,
    remember_packed,
)
from trtspec.builder.plan import BuildPlan
from trtspec.builder.scratch import scratch_folder
from trtspec.builder.tokenizer import save_tokenizer
from trtspec.config.kv import EIGHT_BITS
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import CONFIG_NAME, TOKENIZER_FOLDER, EngineConfig
from trtspec.engine.graphs import (
    draft_constants,
    draft_module,
    engine_shape,
    graph_names,
    own_state,
    target_module,
    whole_state,
)
from trtspec.engine.open import rank_weights
from trtspec.engine.weight_record import record_weights
from trtspec.errors import BuildError, TrtspecError
from trtspec.log import logger, progress
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rank_weights import RankWeights


def build_engine(
    plan: BuildPlan,
    output_dir: Path,
    force: bool = False,
    write_weights: Callable[[BuildPlan, Path], None] | None = None,
) -> Path:
    """Build ``plan`` into ``output_dir``, atomically; an equal finished build is left as it is.
    ``write_weights``: writes the networks' folders with everything but their graphs; None: the
    checkpoints' weights.

    Raises:
        BuildError: ``output_dir`` holds something else and ``force`` is not set, or a step failed.
            Nothing is left behind then.
    """
    output_dir = output_dir.resolve()  # "." has no name to put a scratch folder beside
    if _holds(output_dir, plan):
        logger.info("%s is up to date (%s)", output_dir, plan.fingerprint)
        return output_dir
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())) and not force:
        raise BuildError(
            f"{output_dir} exists and is not this engine; choose another --output_dir, "
            "or pass --force to replace it"
        )
    if plan.engine.backend.makes_artifacts:
        require_cache()  # graphs are kept there, wherever the engine goes
    try:
        with scratch_folder(output_dir) as scratch:
            (write_weights or _write_weights)(plan, scratch)
            _write_engine(plan, scratch)
            _move_into_place(scratch, output_dir, plan)
        if write_weights is None:
            remember_packed(packed_key(plan), output_dir)
    except (OSError, SafetensorError) as error:
        is_cached = output_dir.is_relative_to(cache_root().resolve())
        remedy = f"; name another cache folder in {CACHE_VARIABLE}" if is_cached else ""
        raise BuildError(f"{output_dir} cannot be written: {error}{remedy}") from error
    return output_dir


def cached_engine(plan: BuildPlan) -> Path:
    """The engine for ``plan`` in the user's cache folder, built if necessary."""
    folder = cache_root() / "engines" / plan.fingerprint
    if _holds(folder, plan):
        return build_engine(plan, folder, force=True)
    require_cache()
    name = plan.target_dir.stem if plan.target_dir.is_file() else plan.target_dir.name
    kept = f" (once: it is kept in {folder})"
    with progress(f"build an engine of {name}", kept, beats=False):
        return build_engine(plan, folder, force=True)


def _write_weights(plan: BuildPlan, folder: Path) -> None:
    engine = plan.engine
    (folder / TARGET).mkdir()
    checkpoint = load_target(plan.target_dir, plan.tokenizer_dir)
    # The plan may know of an end token that only the tokenizer names, and may want floats.
    ends, storage = engine.target.eos_token_ids, engine.target.storage
    config = replace(checkpoint.config, eos_token_ids=ends, storage=storage)
    config = config.with_caches(cache_dtype_of(engine.build))
    checkpoint = replace(checkpoint, config=config)
    _write_target(plan, checkpoint, folder / TARGET)
    for draft, found in zip(engine.drafts, plan.drafts, strict=True):
        (folder / draft.folder).mkdir()
        with progress(f"pack weights of the {draft.folder}"):
            _write_draft(plan, draft, found, checkpoint, folder / draft.folder)


def _write_target(plan: BuildPlan, checkpoint: Checkpoint, folder: Path) -> None:
    """Pack the target's weights, or copy what was packed for another engine, and report the cost of
    quantisation."""
    engine, key = plan.engine, packed_key(plan)
    kept, ranks = engine.formats_of(), engine.target.ranks
    said = recall_lines(key) if kept.is_rounded else []
    copies = said is not None and ranks == 1
    source = copy_packed(key, folder / WEIGHTS_NAME) if copies else None
    if source is not None:
        logger.info("pack weights of the target: those of %s are the same", source)
    else:
        has_eight_bits = engine.build.kv_cache_dtype == EIGHT_BITS
        parts: list[CausalLM] = []
        for rank in range(ranks):
            of_rank = f", rank {rank} of {ranks}" if ranks > 1 else ""
            with progress(f"pack weights of the target{of_rank}"):
                target = target_module(engine)
                split = RankWeights(checkpoint, engine.target, rank) if ranks > 1 else checkpoint
                target.load_weights(split)
                _save(target.state_dict(), rank_weights(folder, rank))
            if said is None or has_eight_bits:  # else one at a time is held
                parts.append(target)
        if has_eight_bits:
            with progress(f"compare {EIGHT_BITS} K/V with {engine.build.dtype}"):
                lost = cache_report(engine, parts, plan.tokenizer_dir)
            logger.info("%s K/V of the target: %s", EIGHT_BITS, lost)
        if said is None:
            with progress(f"compare {kept.name} weights with floats"):
                cost = text_report(engine, parts, checkpoint, plan.floats, plan.tokenizer_dir)
            said = [rounding_report(*parts), cost]
            remember_lines(key, said)
    for line in said or ():
        logger.info("%s weights of the target: %s", kept.name, line)


def _write_engine(plan: BuildPlan, folder: Path) -> None:
    """Write everything but weights that are already in files."""
    engine = plan.engine
    if engine.backend.makes_artifacts:
        place_graphs(engine, graph_names(engine), folder)
    engine.backend.finish(engine_shape(engine), folder)
    (folder / TOKENIZER_FOLDER).mkdir()
    save_tokenizer(plan.tokenizer_dir, folder / TOKENIZER_FOLDER)
    names = (TARGET, *(draft.folder for draft in engine.drafts))
    files = {name: folder / name / WEIGHTS_NAME for name in names}
    weights = {name: record_weights(file) for name, file in files.items() if file.is_file()}
    replace(engine, weights=weights).write(folder)


def _write_draft(
    plan: BuildPlan,
    draft: EngineDraft,
    found: DraftCheckpoint,
    target: Checkpoint,
    folder: Path,
) -> None:
    """Pack the draft's own weights and the constants of its tree."""
    engine, ranks = plan.engine, draft.network.ranks
    require_weights(found, target.path)
    parts = [draft_module(engine, draft) for _ in range(ranks)]
    borrows_copies = engine.target.ranks > ranks
    for rank, module in enumerate(parts):
        split = RankWeights(found, found.config.sharded(ranks), rank) if ranks > 1 else found
        draft.kind.load(module, split, target.tensors)
        state = whole_state(module, target.tensors) if borrows_copies else own_state(module)
        _save({**state, **draft_constants(draft)}, rank_weights(folder, rank))
    kept = engine.formats_of(draft)
    if kept.is_rounded:
        logger.info("%s weights of the %s: %s", kept.name, draft.folder, rounding_report(*parts))
    models = [module for module in parts if isinstance(module, CausalLM)]
    if draft.weights is not None and kept.layers.is_rounded and models:
        key = packed_key(plan, draft)
        said = recall_lines(key)
        if said is None:
            with progress(f"compare {kept.layers.name} weights of the {draft.folder}"):
                said = [draft_report(engine, models, found)]
            remember_lines(key, said)
        for line in said:
            logger.info("drafts of the %s: %s", draft.folder, line)


def _save(state: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)


def _holds(folder: Path, plan: BuildPlan) -> bool:
    if not (folder / CONFIG_NAME).is_file():
        return False
    try:
        engine = EngineConfig.read(folder, runs_here=False)
        return engine.fingerprints.get("engine") == plan.fingerprint
    except TrtspecError:
        return False


def _move_into_place(scratch: Path, output_dir: Path, plan: BuildPlan) -> None:
    """Rename. If another process has built the same engine meanwhile, its folder stays, as it may
    be in use."""
    if _holds(output_dir, plan):
        return
    if output_dir.exists():
        retired = scratch.with_name(scratch.name + "-old")
        output_dir.rename(retired)
        shutil.rmtree(retired, ignore_errors=True)
    try:
        scratch.rename(output_dir)
    except OSError:
        if not _holds(output_dir, plan):
            raise
