"""The ONNX graphs of an engine: which there are, over which module, with which inputs.

A target is one graph. A draft with K/V is a graph for one pass, one for its head and, where it
reads the target's states, one that makes features of them: a rollout calls them depth by depth (see
`trtspec.engine.network`). Their names are relative to the engine folder, and their initialisers lie
in its weight files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from trtspec.config.eagle import EagleConfig
from trtspec.config.medusa import MedusaConfig
from trtspec.config.model import ModelConfig
from trtspec.config.mtp import MtpConfig
from trtspec.config.parallel import PardConfig, PEagleConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError
from trtspec.models.lowered import LinearModel, LinearPass, Method

TARGET_GRAPH = "target.onnx"
PASS_GRAPH = "pass.onnx"
HEAD_GRAPH = "head.onnx"
FUSE_GRAPH = "fuse.onnx"
MARGINALS_GRAPH = "marginals.onnx"

_DRAFT_GRAPHS: Mapping[str, tuple[str, ...]] = {
    ModelConfig.kind: (PASS_GRAPH, HEAD_GRAPH),
    EagleConfig.kind: (FUSE_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    MtpConfig.kind: (FUSE_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    PardConfig.kind: (PASS_GRAPH, HEAD_GRAPH),
    PEagleConfig.kind: (FUSE_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    MedusaConfig.kind: (MARGINALS_GRAPH,),
}
"""Of each kind of draft network; others cannot be lowered."""

_BATCH, _ROWS, _WANTED = 2, 3, 5  # all different, so that export cannot confuse them
_MAX_ROWS = 1 << 20


@dataclass(frozen=True)
class LoweredGraph:
    """A module for export: example arguments, their dynamic dimensions in the same structure, and
    the names of inputs and outputs in flat order. The last ``num_caches`` of each are the same
    caches, before and after."""

    module: nn.Module
    args: tuple[Any, ...]
    dims: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    num_caches: int = 0


def lowered_graph_names(engine: EngineConfig) -> list[str]:
    """The ONNX files of an engine folder, relative to it.

    Raises:
        ConfigError: a draft that cannot be lowered.
    """
    names = [TARGET_GRAPH]
    for draft in engine.drafts:
        kind = draft.network.kind
        if kind not in _DRAFT_GRAPHS:
            raise ConfigError(
                f"drafts of kind {kind!r} are not available on backend {engine.build.backend!r} "
                f"(available there: {', '.join(_DRAFT_GRAPHS)}); use backend 'aoti'"
            )
        names += lowered_files(draft).values()
    return names


def lowered_files(draft: EngineDraft) -> dict[str, str]:
    """The files of a draft's graphs, relative to the engine folder, by the graphs' own names."""
    return {name: f"{draft.folder}-{name}" for name in _DRAFT_GRAPHS[draft.network.kind]}


def lowered_draft_of(engine: EngineConfig, file: str) -> tuple[EngineDraft, str] | None:
    """The draft that a file belongs to, and the own name of its graph; None for the target's."""
    for draft in engine.drafts:
        for name, own_file in lowered_files(draft).items():
            if own_file == file:
                return draft, name
    return None


def lower(engine: EngineConfig, file: str, module: nn.Module) -> LoweredGraph:
    """The graph in that file over ``module``, a `target_module` or `draft_module`."""
    found = lowered_draft_of(engine, file)
    if found is None:
        wanted = torch.zeros(_WANTED, dtype=torch.int64)
        return _with_rows(
            engine,
            engine.target,
            lambda windows: LinearModel(module, windows),  # type: ignore[arg-type]
            ("logits_rows", wanted, {0: Dim("logits_rows", min=1, max=_MAX_ROWS)}),
            ["logits", *(["hidden"] if engine.capture_layers else [])],
        )
    draft, name = found
    if name != PASS_GRAPH:
        return _method(engine, draft, name, module)
    decoder = draft.network.decoder
    assert decoder is not None
    reads = FUSE_GRAPH in lowered_files(draft)
    features = torch.zeros(_BATCH, _ROWS, decoder.hidden_size, dtype=_dtype(engine))
    return _with_rows(
        engine,
        decoder,
        lambda windows: LinearPass(module, windows),
        ("features", features, {0: _dim("batch"), 1: _dim("rows")})
        if reads
        else ("features", None, None),
        ["ready", *(["next_features"] if reads else [])],
    )


def layer_windows(config: ModelConfig) -> list[int]:
    """The sliding windows of a decoder's layers, rising, 0 for none: it reads a mask of each."""
    return sorted({config.window(layer) for layer in range(config.num_layers)})


def mask_name(window: int) -> str:
    return f"mask_{window}" if window else "mask"


def _with_rows(
    engine: EngineConfig,
    decoder: ModelConfig,
    make: Callable[[Sequence[int]], nn.Module],
    extra: tuple[str, Tensor | None, Any],
    outputs: Sequence[str],
) -> LoweredGraph:
    """A graph over padded rows and caches; ``extra`` is its input between the two."""
    length, layers = engine.layout.tokens_per_block, decoder.num_layers
    windows = layer_windows(decoder)
    batch, rows = _dim("batch"), _dim("rows")
    ids = torch.zeros(_BATCH, _ROWS, dtype=torch.int64)
    starts = torch.zeros(_BATCH, dtype=torch.int64)
    masks = [torch.ones(_BATCH, 1, _ROWS, length, dtype=torch.bool) for _ in windows]
    shape = (_BATCH, decoder.num_kv_heads, length, decoder.head_dim)
    caches = [[torch.zeros(shape, dtype=_dtype(engine)) for _ in range(layers)] for _ in "kv"]
    cache_names = [f"{kind}_cache_{i}" for kind in "kv" for i in range(layers)]
    name, tensor, dim = extra
    return LoweredGraph(
        make(windows),
        (ids, ids.clone(), starts, masks, tensor, *caches),
        (
            {0: batch, 1: rows},
            {0: batch, 1: rows},
            {0: batch},
            [{0: batch, 2: rows}] * len(windows),
            dim,
            *([[{0: batch}] * layers] * 2),
        ),
        (
            *("input_ids", "positions", "write_indices", *map(mask_name, windows)),
            *([] if tensor is None else [name]),
            *cache_names,
        ),
        (*outputs, *(f"{name}_out" for name in cache_names)),
        2 * layers,
    )


def _method(engine: EngineConfig, draft: EngineDraft, name: str, module: nn.Module) -> LoweredGraph:
    """A graph of one method of the network, over rows of one width."""
    states = len(draft.network.capture_layers) * engine.target.hidden_size
    decoder = draft.network.decoder
    width, method, given, made = {
        FUSE_GRAPH: (states, "fuse", "hidden_in", "features"),
        HEAD_GRAPH: (decoder.hidden_size if decoder else 0, "head", "ready", "logits"),
        MARGINALS_GRAPH: (states, "marginals", "hidden_in", "marginals"),
    }[name]
    hidden = torch.zeros(_ROWS, width, dtype=_dtype(engine))
    dims = ({0: _dim("packed_rows")},)
    return LoweredGraph(Method(module, method), (hidden,), dims, (given,), (made,))


def _dim(name: str) -> Any:
    return Dim(name, min=1, max=_MAX_ROWS)


def _dtype(engine: EngineConfig) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return dtype
