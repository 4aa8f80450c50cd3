"""Networks split over ranks: where this is supported, and what each rank holds and exchanges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtspec.backends.registry import backend_named
from trtspec.config.build_config import BuildConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.memory import kv_bytes_per_token, weight_bytes
from trtspec.engine.weight_formats import draft_formats, target_formats
from trtspec.errors import ConfigError
from trtspec.models.ranks import exchanged

_GIB, _KIB = 1 << 30, 1 << 10


def split(target: ModelConfig, build: BuildConfig) -> ModelConfig:
    """One rank's part of a target.

    Raises:
        ConfigError: targets cannot be split there (in graphs without ops); or see
            `ModelConfig.sharded`.
    """
    ranks = build.tensor_parallel_size
    if ranks == 1:
        return target
    if not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"tensor_parallel_size {ranks}: ranks meet in ops, and graphs of backend "
            f"{build.backend!r} call none; choose another, such as the default one"
        )
    return target.sharded(ranks, build.enable_expert_parallel)


def split_draft(
    network: DraftConfig, speculative: TreeDecodingConfig, build: BuildConfig
) -> DraftConfig:
    """What a rank has of a draft: all of it, or as much as of its target.

    Raises:
        ConfigError: another number of ranks was asked for; or see `DraftConfig.sharded`.
    """
    asked, ranks = speculative.draft_tensor_parallel_size or 1, build.tensor_parallel_size
    if asked == 1:
        return network
    if asked != ranks:
        raise ConfigError(
            f"draft_tensor_parallel_size is {asked}, tensor_parallel_size {ranks}: a draft is "
            f"split over all ranks of its target, or runs on the first; write {ranks} or 1"
        )
    return network.sharded(ranks)


def rank_lines(whole: ModelConfig, own: ModelConfig, build: BuildConfig) -> list[str]:
    """What each rank has of the ``whole`` target, and what a step exchanges, in words."""
    weights = [weight_bytes(m, target_formats(m, build), build) for m in (whole, own)]
    kv = [kv_bytes_per_token(m, build.dtype) for m in (whole, own)]
    return [
        f"each of {own.ranks} ranks has {_shared(own.ranks, weights, kv)}",
        f"a step exchanges {_exchanges(own, build)} that is sampled",
    ]


def draft_rank_lines(
    whole: DraftConfig, draft: EngineDraft, target: ModelConfig, build: BuildConfig
) -> list[str]:
    """The same of a draft of a split target, which is ``whole`` in its checkpoint."""
    own, name = draft.network, draft.folder
    if own.ranks == 1:
        return [f"the {name} is at the first of {target.ranks} ranks, whole"]
    formats = draft_formats(draft.storage, target, build, draft.weights)
    weights = [weight_bytes(m, formats, build) for m in (whole, own)]
    kept = [m.decoder for m in (whole, own) if m.decoder is not None]
    kv = [kv_bytes_per_token(decoder, build.dtype) for decoder in kept]
    _, decoder = min(own.decoders.items())
    return [
        f"each of {own.ranks} ranks has {_shared(own.ranks, weights, kv)} of the {name}",
        f"a pass of the {name} exchanges {_exchanges(decoder, build)} behind which it drafts",
    ]


def _shared(ranks: int, weights: Sequence[int], kv: Sequence[int]) -> str:
    """Bytes of a whole network, and of a rank, in words."""

    def told(figures: Sequence[int], unit: int, name: str) -> str:
        whole, own = (figure / unit for figure in figures)
        again = ranks * own - whole
        at_several = f" ({again:.3f} of {ranks * own:.3f} are at several)"
        return f"{own:.3f} {name}{at_several if again > 0 else ''}"

    cache = f" and {told(kv, _KIB, 'KiB')} of K/V a token" if kv else ""
    return f"{told(weights, _GIB, 'GiB')} of weights{cache}"


def _exchanges(own: ModelConfig, build: BuildConfig) -> str:
    """What ranks exchange in a pass, up to the rows whose logits are wanted, in words."""
    made = exchanged(own, getattr(torch, build.dtype))
    norms = f", {made.norm_sums} of 4 bytes (norms over all heads)" if made.norm_sums else ""
    return (
        f"{made.sums} sums of {made.row_bytes / _KIB:.1f} KiB a row{norms}, and "
        f"{made.logits_bytes / _KIB:.1f} KiB of logits for each row"
    )
