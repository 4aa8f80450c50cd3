"""BuildPlan: everything that a build decides before it starts, for printing, checking and
caching."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import checkpoint_converters
from checkpoint_converters import DraftCheckpoint, content_of, reading_notes
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.families.registry import other_packages
from trtspec.backends.registry import backend_named, options_of
from trtspec.builder.adapters import all_adapters_bytes, require_adapters
from trtspec.builder.cache_support import (
    cache_dtype_of,
    require_states,
)
from trtspec.builder.checkpoints import config_as_said
from trtspec.builder.digest_memory import DigestMemory
from trtspec.builder.draft_plan import DraftPlanner, PlannedDraft
from trtspec.builder.graph_cache import graph_key
from trtspec.builder.locate import find_model
from trtspec.builder.pair import (
    check_draft_depth,
    check_rows_without_draft,
    require_passes,
    require_window,
)
from trtspec.builder.ranks import rank_lines, split
from trtspec.builder.resolve import place_of, resolve_build
from trtspec.builder.sources import PACKAGE, code_in, hash_of, is_ours, sources_of
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.builder.tokenizer import (
    find_tokenizer,
    has_tokenizer,
    tokenizer_files,
    tokenizer_fingerprint,
    tokenizer_folder,
    with_ends,
)
from trtspec.config.build_config import BuildConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.config.strict import to_dict
from trtspec.config.tree_decoding import with_networks
from trtspec.engine.engine_draft import EngineDraft, draft_folder_name
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import graph_names
from trtspec.engine.memory import kv_bytes_per_token
from trtspec.formats.choose import kept_storage
from trtspec.log import logger
from trtspec.models.block_map import require_blocks, require_kernels
from trtspec.speculative.options import speculative_to_dict
from trtspec.speculative.recording import captured_layers
from trtspec.speculative.registry import method_of, other_modules

_GIB = 1 << 30
METHODS = PACKAGE / "speculative"


@dataclass(frozen=True)
class BuildPlan:
    """A resolved build: sources, the engine's contract and the reasons for each choice.

    drafts: the checkpoints of `EngineConfig.drafts`, in order. speculation: what was requested, or
    the chosen method if it was left open. floats: the checkpoint that the target's was quantised
    from for this build, for comparison. tokenizer_dir: location of the tokenizer that the engine
    will carry; another_tokenizer: whether it is not the target's own.
    """

    target_dir: Path
    drafts: tuple[DraftCheckpoint, ...]
    engine: EngineConfig
    reasons: tuple[str, ...]
    speculation: DecodingConfig | None = None
    floats: Path | None = None
    another_tokenizer: Path | None = None

    @property
    def tokenizer_dir(self) -> Path:
        return self.another_tokenizer or self.target_dir

    @property
    def fingerprint(self) -> str:
        return self.engine.fingerprints["engine"]

    def describe(self) -> str:
        """The plan as text, one decision per line."""
        engine, build = self.engine, self.engine.build
        pairs = zip(self.drafts, engine.drafts, strict=True)
        number_format = engine.formats_of().describe(build.dtype)
        lines = [
            f"target   {self.target_dir} ({engine.target.describe()})",
            *(f"draft    {found.path} ({built.network.describe()})" for found, built in pairs),
            f"build    {build.backend}{_device_part(engine)}, {number_format}, "
            "max_batch_size "
            f"{build.max_batch_size}, max_seq_len {build.max_seq_len}, max_num_tokens "
            f"{build.max_num_tokens}",
        ]
        for draft in engine.drafts:
            tree = draft.speculation
            kind = "" if tree.choices is None else ", a static tree"
            if draft.weights is not None:
                kind += f", {engine.formats_of(draft).describe(build.dtype)}"
            lines.append(
                f"drafts   {tree.method}: top-k {tree.topk}, {tree.num_steps} steps, "
                f"{tree.num_draft_tokens} rows verified{kind}"
            )
        if engine.speculation:
            together = engine.speculation
            methods = ", ".join(member.method for member in together.members)
            name = f"{together.method:<8}"
            lines.append(f"{name} {methods}: {together.num_rows} rows of all verified")
        if engine.extract_layers:
            layers = ", ".join(map(str, engine.extract_layers))
            lines.append(f"states   outputs of layers {layers} are handed out to be written")
        if self.another_tokenizer is not None:
            lines.append(f"texts    by the tokenizer in {self.another_tokenizer}")
        lines += [f"because  {reason}" for reason in self.reasons]
        weights = engine.weight_bytes()
        kv = kv_bytes_per_token(engine.target, build.dtype)
        for draft in engine.drafts:
            weights += engine.weight_bytes(draft)
            if draft.network.decoder is not None:
                kv += kv_bytes_per_token(draft.network.decoder, build.dtype)
        full = kv * build.max_batch_size * (build.max_seq_len or 0)
        states = engine.state_bytes(engine.drafts, build.max_batch_size, build.max_num_tokens or 0)
        adapters = all_adapters_bytes(engine.target, build)
        lines.append(
            f"memory   weights {weights / _GIB:.3f} GiB, K/V {kv / 1024:.1f} KiB a token "
            f"({full / _GIB:.3f} GiB for {build.max_batch_size} x {build.max_seq_len} tokens)"
            + (f", states {states / _GIB:.3f} GiB" if states else "")
            + (f", {build.max_loras} adapters {adapters / _GIB:.3f} GiB" if adapters else "")
        )
        lines.append(f"engine   {self.fingerprint}")
        return "\n".join(lines)


def plan_build(
    checkpoint: str | Path,
    config: BuildConfig,
    speculative: DecodingConfig | None = None,
    skip_tokenizer_init: bool = False,
    verify: bool = False,
    floats: Path | None = None,
    tokenizer: str | Path | None = None,
) -> BuildPlan:
    """Resolve and check a build, reading no weights beyond what fingerprints need.

    A tokenizer may be missing; with ``skip_tokenizer_init`` it may also be damaged. ``verify``:
    hash all files again, whatever is remembered. ``floats``: see `BuildPlan`. ``tokenizer``: a
    folder or GGUF file with the tokenizer that the engine carries instead of the checkpoint's own,
    which is then not read.

    Raises:
        CheckpointError: a checkpoint or its tokenizer cannot be read.
        ConfigError: values, or a pair of models, do not fit, or a device is missing.
        BuildError: a package that the backend builds with is missing.
    """
    asked = backend_named(config.backend)
    options_of(asked, config.backend_options)
    target_dir = find_model(checkpoint)
    another = None if tokenizer is None else tokenizer_folder(tokenizer)
    spoken = another or target_dir
    skips_damaged = skip_tokenizer_init or another is not None  # of a draft
    target, ends = _with_tokenizer(config_as_said(target_dir), spoken, skip_tokenizer_init)
    require_blocks(target)
    by_pass = asked.drafts_by_pass(asked.resolve_device(config.device)[0])
    at_hand = TargetDrafts(target, target_dir, another, by_pass=by_pass)
    if speculative is not None:
        speculative = speculative.resolve(at_hand)
    build, reasons = resolve_build(config, target, speculative)
    length = build.max_seq_len
    assert length is not None, "a resolved build says it"
    target = target.for_length(length)
    backend = backend_named(build.backend)
    place = place_of(backend, build.device, build)
    kept = partial(kept_storage, config, place=place, floats=build.dtype)
    target = replace(target, storage=kept(target.storage))
    caches = cache_dtype_of(build)
    target = target.with_caches(caches)
    require_states(target, build)
    require_adapters(target, build)
    whole, target = target, split(target, build)
    if target is not whole:
        reasons += rank_lines(whole, target, build)
    options = options_of(backend, build.backend_options)
    environment = backend.environment_to_build(build.device, options)
    options, why = backend.complete(options)
    build = replace(build, backend_options=to_dict(options))
    reasons += [*why, *reading_notes(target_dir), *ends]
    if speculative is not None:
        check_draft_depth(target, speculative)
    # The engine folder holds a copy of the tokenizer. When the tokenizer changes, another engine
    # must be built.
    digest = DigestMemory.of_user(verify).digest
    fingerprints = {
        "target": hash_files(content_of(target_dir), digest),
        "tokenizer": (
            tokenizer_fingerprint(another) if another else hash_files(tokenizer_files(target_dir))
        ),
    }
    planner = DraftPlanner(
        at_hand, config, build, target, place, spoken, skips_damaged, fingerprints["target"], digest
    )
    planned = [
        planner.plan(speculative, member, draft_folder_name(i))
        for i, member in enumerate(with_networks(speculative))
        if speculative is not None
    ]
    drafts = tuple(each.draft for each in planned)
    for each in planned:
        fingerprints |= each.fingerprints
        reasons += each.reasons
    extract_layers: tuple[int, ...] = ()
    if speculative is not None:
        if not drafts:
            check_rows_without_draft(speculative)
        extract_layers = captured_layers(speculative, target.num_layers)
        reasons += [speculative.note] if speculative.note else []
    if backend.runs_ops:
        for network in (target, *(draft.network.decoder for draft in drafts)):
            if network is not None:
                require_kernels(network, build.device)
    engine = EngineConfig(
        target=target,
        drafts=drafts,
        build=build,
        fingerprints=fingerprints,
        environment=environment,
        speculation=_together(speculative, drafts),
        extract_layers=extract_layers,
    )
    for member, draft in zip(with_networks(speculative), drafts, strict=True):
        require_passes(member, engine)
        require_window(member, draft, engine)
    fingerprints["engine"] = _fingerprint(engine, planned)
    checkpoints = tuple(each.checkpoint for each in planned)
    return BuildPlan(target_dir, checkpoints, engine, tuple(reasons), speculative, floats, another)


def _together(
    speculative: DecodingConfig | None, drafts: Sequence[EngineDraft]
) -> DecodingConfig | None:
    """What the engine is built for, where several methods draft together."""
    if speculative is None or len(speculative.members) < 2 or not drafts:
        return None
    over_drafts = method_of(speculative).over_drafts
    assert over_drafts is not None, "it has several members"
    return over_drafts(speculative, [draft.folder for draft in drafts])


def _fingerprint(engine: EngineConfig, planned: Sequence[PlannedDraft]) -> str:
    """Of all that the engine folder's content follows from."""
    # A change of a converter may change weights without changing any shape.
    converters = code_in(Path(checkpoint_converters.__path__[0]))
    facts: list[object] = [engine.fingerprints, asdict(engine.build), converters, other_packages()]
    facts.append(code_in(METHODS))  # the readers of drafts are among them
    used = {each.checkpoint.method for each in planned}
    used |= {draft.speculation.method for draft in engine.drafts}
    facts.append(_of_other_packages(used))
    facts.append([graph_key(engine, name) for name in graph_names(engine)])
    facts.append(engine.environment.facts)  # some graphs are the same for all versions and GPUs
    # Lowered graphs do not depend on trees, but engines do.
    facts += [draft.to_dict() for draft in engine.drafts]
    facts += [each.never_drafted for each in planned if each.never_drafted]
    if engine.speculation is not None:
        facts.append(speculative_to_dict(engine.speculation))
    key = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _of_other_packages(used: Collection[str]) -> str:
    """The code of other packages for the methods ``used``, and for those that may have weights in a
    target's checkpoint."""
    files = sources_of(other_modules(used))
    return hash_of({name: path for name, path in files.items() if not is_ours(name)})


def _with_tokenizer(
    target: ModelConfig, folder: Path, skip_damaged: bool
) -> tuple[ModelConfig, list[str]]:
    """The target with the tokenizer's end tokens added, and lines about that."""
    if not has_tokenizer(folder):
        if not skip_damaged:
            logger.warning("%s holds no tokenizer: prompts will have to be token ids", folder)
        return target, []
    tokenizer = find_tokenizer(folder, skip_damaged)
    if tokenizer is None:
        return target, ["prompts are token ids: the checkpoint's tokenizer cannot be read"]
    return with_ends(target, tokenizer)


def _device_part(engine: EngineConfig) -> str:
    """Words for a device; none for a CPU."""
    if engine.build.device == "cpu":
        return ""
    environment = engine.environment
    return f" on {engine.build.device} ({environment.gpu}, {environment.compute_capability})"
