"""BuildPlan: everything a build decides before it starts, for printing, checking and caching."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from checkpoint_converters import fingerprint, read_config
from checkpoint_converters.content_hash import hash_files
from trtspec.builder.graph_cache import graph_key
from trtspec.builder.locate import find_model
from trtspec.builder.pair import (
    TOKENIZER_FILES,
    check_draft_depth,
    check_draft_kind,
    check_pair,
    draft_folder,
    open_draft,
    token_map_of,
)
from trtspec.config.build import BuildConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.extract_hidden_states import ExtractHiddenStatesConfig
from trtspec.config.model import ModelConfig
from trtspec.config.resolve import resolve_build
from trtspec.config.speculative import DecodingConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.engine.device import device_problem
from trtspec.engine.folder import EngineConfig, Environment, SpeculationContract
from trtspec.engine.graphs import graph_names
from trtspec.engine.memory import kv_bytes_per_token, weight_bytes
from trtspec.errors import ConfigError

_GIB = 1 << 30


@dataclass(frozen=True)
class BuildPlan:
    """A resolved build: sources, the engine's contract and the reasons for each choice."""

    target_dir: Path
    draft_dir: Path | None
    engine: EngineConfig
    reasons: tuple[str, ...]
    token_map: Path | None = None

    @property
    def fingerprint(self) -> str:
        return self.engine.fingerprints["engine"]

    def describe(self) -> str:
        """The plan as text, one decision a line."""
        engine, build = self.engine, self.engine.build
        lines = [
            f"target   {self.target_dir} ({engine.target.describe()})",
            *([f"draft    {self.draft_dir} ({engine.draft.describe()})"] if engine.draft else []),
            f"build    {build.backend}{_device_part(engine)}, {build.dtype}, max_batch_size "
            f"{build.max_batch_size}, max_seq_len {build.max_seq_len}, max_num_tokens "
            f"{build.max_num_tokens}",
        ]
        if engine.speculation:
            tree = engine.speculation
            kind = "" if tree.choices is None else ", a static tree"
            lines.append(
                f"drafts   {tree.method}: top-k {tree.topk}, {tree.num_steps} steps, "
                f"{tree.num_draft_tokens} rows verified{kind}"
            )
        if engine.extract_layers:
            layers = ", ".join(map(str, engine.extract_layers))
            lines.append(f"states   outputs of layers {layers} are handed out to be written")
        lines += [f"because  {reason}" for reason in self.reasons]
        weights = weight_bytes(engine.target, build.dtype)
        kv = kv_bytes_per_token(engine.target, build.dtype)
        if engine.draft is not None:
            weights += weight_bytes(engine.draft, build.dtype)
        if engine.draft_decoder is not None:
            kv += kv_bytes_per_token(engine.draft_decoder, build.dtype)
        full = kv * build.max_batch_size * (build.max_seq_len or 0)
        lines.append(
            f"memory   weights {weights / _GIB:.3f} GiB, K/V {kv / 1024:.1f} KiB a token "
            f"({full / _GIB:.3f} GiB for {build.max_batch_size} x {build.max_seq_len} tokens)"
        )
        lines.append(f"engine   {self.fingerprint}")
        return "\n".join(lines)


def plan_build(
    checkpoint: str | Path,
    config: BuildConfig,
    speculative: DecodingConfig | None = None,
) -> BuildPlan:
    """Resolve and check a build without reading weights beyond what a fingerprint needs.

    Raises:
        CheckpointError: a checkpoint that cannot be read.
        ConfigError: values, or a pair of models, that do not fit, or a device that is not there.
    """
    target_dir = find_model(checkpoint)
    target = read_config(target_dir)
    build, reasons = resolve_build(config, target, speculative)
    problem = device_problem(build.device)
    if problem is not None:
        raise ConfigError(
            f"device {build.device!r} was asked for, but {problem}, or give device 'cpu'"
        )
    if speculative is not None:
        check_draft_depth(target, speculative)
    # The engine folder holds a copy of the tokenizer, which must not outlive a change of it.
    tokenizer = [target_dir / n for n in TOKENIZER_FILES if (target_dir / n).is_file()]
    fingerprints = {"target": fingerprint(target_dir), "tokenizer": hash_files(tokenizer)}
    draft_dir, token_map = None, None
    draft: DraftConfig | None = None
    contract = None
    if isinstance(speculative, TreeDecodingConfig):
        draft_dir = draft_folder(speculative, target_dir)
        token_map = token_map_of(speculative)
        found = open_draft(speculative.method, draft_dir, target, token_map)
        check_draft_kind(speculative, found)
        draft = found.config.for_steps(speculative.tree.num_steps)
        if isinstance(draft, ModelConfig):
            check_pair(target_dir, target, draft_dir, draft)
        fingerprints["draft"] = found.fingerprint
        contract = SpeculationContract.of(speculative.method, speculative.tree)
        reasons += found.notes
    extract_layers: tuple[int, ...] = ()
    if isinstance(speculative, ExtractHiddenStatesConfig):
        extract_layers = speculative.layers_of(target.num_layers)
        reasons += [speculative.note] if speculative.note else []
    engine = EngineConfig(
        target=target,
        draft=draft,
        build=build,
        speculation=contract,
        fingerprints=fingerprints,
        environment=Environment.here(build.device),
        extract_layers=extract_layers,
    )
    key = json.dumps(
        [fingerprints, asdict(build), [graph_key(engine, name) for name in graph_names(engine)]],
        sort_keys=True,
    )
    fingerprints["engine"] = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return BuildPlan(target_dir, draft_dir, engine, tuple(reasons), token_map)


def _device_part(engine: EngineConfig) -> str:
    """Nothing for a CPU."""
    if engine.build.device == "cpu":
        return ""
    environment = engine.environment
    return f" on {engine.build.device} ({environment.gpu}, {environment.compute_capability})"
