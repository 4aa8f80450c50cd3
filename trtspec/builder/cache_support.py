"""Which caches a backend's graphs support, and which of them a draft can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from trtspec.backends.registry import backend_named
from trtspec.config.build_config import BuildConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.kv import AUTO, CacheDtype
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.models.layer_facts import keeps_states
from trtspec.speculative.registry import draft_kinds


def cache_dtype_of(build: BuildConfig) -> CacheDtype | None:
    """In what the networks of a resolved build keep K/V, None: in their own dtype.

    Raises:
        ConfigError: its graphs read no K/V but in their own: those that call no ops.
    """
    kept = build.kv_cache_dtype
    if kept == AUTO:
        return None
    if not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"kv_cache_dtype {kept}: attention of backend {build.backend!r} reads K/V in its own "
            "dtype alone in this version; leave it out, or build with the default backend"
        )
    return cast(CacheDtype, kept)


def require_states(target: ModelConfig, build: BuildConfig) -> None:
    """Raise ConfigError if the backend cannot keep recurrent states (graphs over slots, or with
    plugins)."""
    if keeps_states(target) and not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"{target.architecture} has layers that keep states, and graphs of backend "
            f"{build.backend!r} keep none; choose another, such as the default one"
        )


def require_target_caches(
    layers: Sequence[int], speculative: TreeDecodingConfig, build: BuildConfig
) -> None:
    """Raise ConfigError if a draft reads the target's K/V and cannot here."""
    ranks = build.tensor_parallel_size
    if layers and (speculative.draft_tensor_parallel_size or 1) < ranks:
        raise ConfigError(
            f"method {speculative.method!r} reads the target's K/V, of which each rank of "
            f"tensor_parallel_size {ranks} has a part; split the draft, too "
            f"(draft_tensor_parallel_size {ranks}), or leave tensor_parallel_size out"
        )
    if layers and not backend_named(build.backend).runs_ops:
        raise ConfigError(
            f"method {speculative.method!r} reads the target's K/V of layers "
            f"{', '.join(map(str, layers))} in blocks by an op, and graphs of backend "
            f"{build.backend!r} call none; choose another, such as the default one"
        )


def require_draft_states(
    draft: DraftConfig, speculative: TreeDecodingConfig, build: BuildConfig
) -> None:
    """ConfigError for a draft whose layers keep states, where its rollout is one call: states are
    copied between passes."""
    if draft.decoder is None or not keeps_states(draft.decoder):
        return
    by_pass = backend_named(build.backend).drafts_by_pass(build.device)
    if draft_kinds()[draft.kind].one_pass is None or not by_pass:
        raise ConfigError(
            f"method {speculative.method!r} drafts with {draft.decoder.architecture}, whose layers "
            f"keep states: it would have to draft pass by pass, and with backend {build.backend!r} "
            f"on {build.device!r} it does not; choose another draft, or, on a CPU, the method of "
            "draft models"
        )
    if speculative.window is not None:
        raise ConfigError(
            f"draft_window={speculative.window.size}: layers of {draft.decoder.architecture} keep "
            "states, which forget nothing by a window; leave it out"
        )
