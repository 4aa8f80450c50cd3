"""DraftPlanner: what a build decides about each draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoint_converters import DraftCheckpoint
from checkpoint_converters.content_hash import hash_files
from trtspec.builder.cache_support import (
    cache_dtype_of,
    require_draft_states,
    require_target_caches,
)
from trtspec.builder.made_for import made_for_another
from trtspec.builder.pair import check_draft_kind, fit_pair, whole_fingerprint
from trtspec.builder.ranks import draft_rank_lines, split_draft
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.config.build_config import BuildConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.draft_weights import AUTO
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.engine.engine_draft import EngineDraft, SpeculationContract
from trtspec.engine.memory import weight_bytes
from trtspec.engine.weight_formats import draft_formats
from trtspec.errors import ConfigError
from trtspec.formats.base import Place
from trtspec.formats.choose import kept_storage
from trtspec.formats.drafts import DraftFormat, resolve_copy, resolve_draft
from trtspec.models.block_map import require_blocks
from trtspec.models.layer_facts import Matrix
from trtspec.speculative.members import naming
from trtspec.speculative.registry import draft_kinds, method_of


@dataclass(frozen=True)
class PlannedDraft:
    """A draft of an engine, and the checkpoint that it is made from.

    fingerprints: of its checkpoint, by their names in the engine's. never_drafted: its token ids
    that mean other tokens to the target, or none.
    """

    draft: EngineDraft
    checkpoint: DraftCheckpoint
    fingerprints: Mapping[str, str]
    never_drafted: list[int]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class DraftPlanner:
    """Plans drafts for a target whose own build is resolved.

    config: the build as requested. place: where weights are kept. spoken: location of the tokenizer
    that the engine will carry; skips_damaged: whether a draft's may be damaged. fingerprint: of the
    target. digest: hashes a file.
    """

    at_hand: TargetDrafts
    config: BuildConfig
    build: BuildConfig
    target: ModelConfig
    place: Place
    spoken: Path
    skips_damaged: bool
    fingerprint: str
    digest: Callable[[Path], str]

    def plan(
        self, speculative: DecodingConfig, member: TreeDecodingConfig, folder: str
    ) -> PlannedDraft:
        """The draft that the engine folder will hold in ``folder`` for one of the methods.

        Raises:
            CheckpointError: its checkpoint cannot be read.
            ConfigError: it does not fit the target or the build.
        """
        build, target = self.build, self.target
        with naming(speculative, member):
            found = self.at_hand.open(member)
            check_draft_kind(member, found)
            found = found.with_caches(cache_dtype_of(build))
            form = self._form(member, found)
            because = [*found.notes, *form.reasons]
            if form.rounds_head:
                found = found.in_floats(not form.rounds, form.bits)
            never: list[int] = []
            if isinstance(found.config, ModelConfig):
                found, never = fit_pair(self.spoken, target, found, self.skips_damaged)
            if never:
                because.append(
                    f"{len(never)} of its {found.config.vocab_size} ids are never drafted: "
                    "other tokens for the target, or none"
                )
            network, choice = _network(member, found, target, build)
            made_for = made_for_another(found.path, self.fingerprint)
            draft = EngineDraft(
                network,
                SpeculationContract.of(member),
                folder,
                storage=kept_storage(
                    form.kept_by(self.config), found.storage, self.place, build.dtype
                ),
                weights=form.weights,
                doubts=(*found.doubts, *made_for),
                vocabulary=member.cut.words if member.cut else None,
            )
            _require_own_head(member, draft)
            draft.tell_doubts(found.path)
        fingerprints = {folder: hash_files(found.content, self.digest)}
        if draft.vocabulary is not None:
            uncut = self.at_hand.open(member.uncut()).content
            fingerprints[whole_fingerprint(folder)] = hash_files(uncut, self.digest)
        assert build.max_seq_len is not None, "a resolved build says it"
        because += [*choice, *made_for, *_reach(member, draft, build.max_seq_len)]
        if target.ranks > 1:
            because += draft_rank_lines(member.network(found.config)[0], draft, target, build)
        return PlannedDraft(draft, found, fingerprints, never, tuple(because))

    def _form(self, member: TreeDecodingConfig, found: DraftCheckpoint) -> DraftFormat:
        """How its weights are kept."""
        if method_of(member).copies_target:
            return resolve_copy(member.weights, self.build, self.target.storage, self.place)
        size = _model_bytes(found, self.target, self.build)
        kept_of = self.target.storage, found.storage
        return resolve_draft(member.weights, self.build, self.config, *kept_of, size, self.place)


def _network(
    speculative: TreeDecodingConfig,
    found: DraftCheckpoint,
    target: ModelConfig,
    build: BuildConfig,
) -> tuple[DraftConfig, tuple[str, ...]]:
    """The draft's network as the engine runs it, and lines about choices made."""
    network, choice = speculative.network(found.config)
    speculative.check_network(network)
    if network.decoder is not None:
        require_blocks(network.decoder)
    require_draft_states(network, speculative, build)
    require_target_caches(draft_kinds()[network.kind].target_layers(network), speculative, build)
    network = split_draft(network, speculative, build)
    assert build.max_seq_len is not None, "a resolved build says it"
    return _for_length(network, build.max_seq_len), choice


def _reach(speculative: TreeDecodingConfig, draft: EngineDraft, length: int) -> list[str]:
    """A line if the engine's longest texts are too long for a draft."""
    longest = speculative.max_model_len or draft.longest
    if longest is None or longest >= length:
        return []
    said = "max_model_len" if speculative.max_model_len else "its max_position_embeddings"
    return [f"the {draft.folder} drafts in texts of up to {longest} tokens: {said}"]


def _for_length(network: DraftConfig, length: int) -> DraftConfig:
    """See `ModelConfig.for_length`; for a feature drafter, applied to its layers."""
    if isinstance(network, ModelConfig):
        return network.for_length(length)
    if isinstance(network.decoder, ModelConfig) and "decoder" in vars(network):
        return replace(network, decoder=network.decoder.for_length(length))  # type: ignore[type-var]
    return network


def _model_bytes(found: DraftCheckpoint, target: ModelConfig, build: BuildConfig) -> int | None:
    """Bytes of a drafting language model's weights in its checkpoint; None for other networks."""
    if not isinstance(found.config, ModelConfig):
        return None
    return weight_bytes(found.config, draft_formats(found.storage, target, build), build)


def _require_own_head(speculative: TreeDecodingConfig, draft: EngineDraft) -> None:
    """Raise ConfigError if a format is requested for a head that is the target's."""
    asked, reads = speculative.weights.head_weight_dtype, draft.kind.matrices(draft.network)
    if asked != AUTO and not any(isinstance(each, Matrix) and each.is_head for each in reads):
        raise ConfigError(
            f"head_weight_dtype {asked}: the draft has no head of its own, it reads the target's; "
            "leave it out, or build with --head_weight_dtype"
        )
