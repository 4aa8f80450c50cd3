"""The ONNX graphs of an engine: which there are, over which module, with which inputs.

A target is one graph. A draft with K/V is a graph for one pass, one for its head and, where it
reads the target's states, one that makes features of them: a rollout calls them depth by depth (see
`trtspec.backends.slots.networks`). MTP modules are a pass and a head each. A network of blocks is a
graph that writes what it makes of the target's states, and a pass over blocks alone: in one graph
there would be two updates of a cache, which TensorRT-RTX refuses. Their names are relative to the
engine folder, and their initialisers lie in its weight files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from trtspec.backends.slots.lowered import (
    Method,
    SlotContext,
    SlotFeaturePass,
    SlotModel,
    SlotPass,
)
from trtspec.backends.slots.rows import MaskKind
from trtspec.backends.tensorrt.lowered import SlotVerify
from trtspec.config.dflash import DFlashConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.eagle import EagleConfig
from trtspec.config.medusa import MedusaConfig
from trtspec.config.model import ModelConfig
from trtspec.config.mtp import MtpConfig
from trtspec.config.mtp_modules import MtpModulesConfig
from trtspec.config.parallel import PardConfig, PEagleConfig
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns

TARGET_GRAPH = "target.onnx"
PASS_GRAPH = "pass.onnx"
HEAD_GRAPH = "head.onnx"
FUSE_GRAPH = "fuse.onnx"
CONTEXT_GRAPH = "context.onnx"
MARGINALS_GRAPH = "marginals.onnx"

VERDICT = ("sampled", "accepted_rows", "num_emitted")
"""What a target's graph with plugins returns besides, see `SlotVerify`."""

DRAFT_GRAPHS: Mapping[str, tuple[str, ...]] = {
    ModelConfig.kind: (PASS_GRAPH, HEAD_GRAPH),
    EagleConfig.kind: (FUSE_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    MtpConfig.kind: (FUSE_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    PardConfig.kind: (PASS_GRAPH, HEAD_GRAPH),
    PEagleConfig.kind: (FUSE_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    MedusaConfig.kind: (MARGINALS_GRAPH,),
    DFlashConfig.kind: (CONTEXT_GRAPH, PASS_GRAPH, HEAD_GRAPH),
    MtpModulesConfig.kind: (PASS_GRAPH, HEAD_GRAPH),
}
"""Of each kind of draft network, or of each module of one."""

_BATCH, _ROWS, _WANTED = 2, 4, 5  # all different, and from _BATCH + 1: export cannot confuse them
_MAX_ROWS = 1 << 20


@dataclass(frozen=True)
class _Part:
    """What a draft's graph is over: the kind of graph, the network's submodule and its shape."""

    graph: str
    module: str
    network: DraftConfig


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
    """The ONNX files of an engine folder, relative to it."""
    return [
        TARGET_GRAPH,
        *(file for draft in engine.drafts for file in lowered_files(draft).values()),
    ]


def lowered_files(draft: EngineDraft) -> dict[str, str]:
    """The files of a draft's graphs, relative to the engine folder, by the graphs' own names."""
    return {name: f"{draft.folder}-{name}" for name in _parts(draft.network)}


def depth_graph(name: str, depth: int) -> str:
    """The name of a graph, ``PASS_GRAPH`` or ``HEAD_GRAPH``, of the module of a depth."""
    return name.replace(".", f"-{depth}.")


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
    if found is None and engine.build.accepts_in_engine:
        return _verify(engine, module)
    if found is None:
        wanted = torch.zeros(_WANTED, dtype=torch.int64)
        kinds = mask_kinds(engine.target)
        return _with_rows(
            engine,
            engine.target,
            SlotModel(module, kinds),  # type: ignore[arg-type]
            kinds,
            _Extra("logits_rows", wanted, {0: _dim("logits_rows")}),
            ["logits", *(["hidden"] if engine.capture_layers else [])],
        )
    draft, name = found
    part = _parts(draft.network)[name]
    if part.graph == PASS_GRAPH:
        return _pass(engine, part, module)
    if part.graph == CONTEXT_GRAPH:
        return _context(engine, part, module)
    return _method(engine, part, module)


def mask_kinds(network: DraftConfig) -> list[MaskKind]:
    """The masks that a graph over rows of a network reads, in their order."""
    decoder = network.decoder
    assert decoder is not None
    layers = range(decoder.num_layers)
    causal = network.causal_layers if isinstance(network, DFlashConfig) else [False for _ in layers]
    return sorted({MaskKind(decoder.window(layer), causal[layer]) for layer in layers})


def mask_name(kind: MaskKind) -> str:
    """``mask``, ``mask_16`` for a window of 16, ``causal_mask``, ``causal_mask_16``."""
    name = "causal_mask" if kind.is_causal else "mask"
    return f"{name}_{kind.window}" if kind.window else name


def _parts(network: DraftConfig) -> dict[str, _Part]:
    """What the graphs of a network are over, by their names."""
    graphs = DRAFT_GRAPHS[network.kind]
    if not isinstance(network, MtpModulesConfig):
        return {graph: _Part(graph, "", network) for graph in graphs}
    return {
        depth_graph(graph, depth): _Part(graph, f"depths.{depth}", network.module)
        for depth in range(network.num_modules)
        for graph in graphs
    }


@dataclass(frozen=True)
class _Extra:
    """An input besides rows and caches: an example and its dynamic dimensions."""

    name: str
    example: Tensor
    dims: Mapping[int, Any]


def _pass(engine: EngineConfig, part: _Part, module: nn.Module) -> LoweredGraph:
    decoder, kinds = part.network.decoder, mask_kinds(part.network)
    assert decoder is not None
    if not isinstance(part.network, EagleConfig):
        plain = SlotPass(module, kinds, part.module)
        return _with_rows(engine, decoder, plain, kinds, None, ["ready"])
    features = torch.zeros(_BATCH, _ROWS, decoder.hidden_size, dtype=_dtype(engine))
    extra = _Extra("features", features, _row_dims())
    reading = SlotFeaturePass(module, kinds, part.module)
    return _with_rows(engine, decoder, reading, kinds, extra, ["ready", "next_features"])


def _with_rows(
    engine: EngineConfig,
    decoder: ModelConfig,
    module: nn.Module,
    kinds: Sequence[MaskKind],
    extra: _Extra | None,
    outputs: Sequence[str],
) -> LoweredGraph:
    """A graph over padded rows and caches; ``extra`` is an input between the two."""
    length = engine.layout.tokens_per_block
    seen, mask_dims = length, {0: _dim("batch"), 2: _dim("rows")}
    if views_are_cut(engine):
        seen, mask_dims[3] = length - 1, Dim("seen", min=1, max=length)
    ids, starts = _rows(), torch.zeros(_BATCH, dtype=torch.int64)
    masks = [torch.ones(_BATCH, 1, _ROWS, seen, dtype=torch.bool) for _ in kinds]
    caches, cache_dims, cache_names = _caches(engine, decoder)
    between = [] if extra is None else [extra]
    return LoweredGraph(
        module,
        (ids, ids.clone(), starts, masks, *(given.example for given in between), *caches),
        (
            *(_row_dims(), _row_dims(), {0: _dim("batch")}, [mask_dims] * len(kinds)),
            *(given.dims for given in between),
            *cache_dims,
        ),
        (
            *("input_ids", "positions", "write_indices", *map(mask_name, kinds)),
            *(given.name for given in between),
            *cache_names,
        ),
        (*outputs, *(f"{name}_out" for name in cache_names)),
        len(cache_names),
    )


def _context(engine: EngineConfig, part: _Part, module: nn.Module) -> LoweredGraph:
    """A graph that writes rows made of states alone."""
    decoder = part.network.decoder
    assert decoder is not None
    hidden = torch.zeros(_BATCH, _ROWS, _states(engine, part), dtype=_dtype(engine))
    caches, cache_dims, cache_names = _caches(engine, decoder)
    return LoweredGraph(
        SlotContext(module),
        (_rows(), torch.zeros(_BATCH, dtype=torch.int64), hidden, *caches),
        (_row_dims(), {0: _dim("batch")}, _row_dims(), *cache_dims),
        ("positions", "write_indices", "hidden_in", *cache_names),
        ("features", *(f"{name}_out" for name in cache_names)),
        len(cache_names),
    )


def views_are_cut(engine: EngineConfig) -> bool:
    """Whether a call's masks, and with them what attention reads of the caches, end behind the last
    position that a row of it can see.

    ONNX Runtime's Attention works on all the keys and values that it is given: with
    ``nonpad_kv_seqlen`` too, which only adds a mask there (1.31, on CPUs), and a cache of several
    heads cannot be bound shorter than it lies in memory. So its graphs give it the beginning of
    each cache, as long as the mask. That is a copy, which adds 10 to 35 % to the attention of as
    many positions, so it pays while a quarter of a cache is unused, and a single row that sees an
    eighth of 2048 positions takes a sixth of the time. TensorRT updates and reads a cache in one
    piece, between which no slice may come: there a mask is as long as a cache.
    """
    return engine.build.backend == "onnx"


def _caches(
    engine: EngineConfig, decoder: ModelConfig
) -> tuple[list[list[Tensor]], list[list[dict[int, Any]]], list[str]]:
    """Example caches, keys and values, their dynamic dimensions and their names."""
    layers = range(decoder.num_layers)
    shape = (_BATCH, decoder.num_kv_heads, engine.layout.tokens_per_block, decoder.head_dim)
    caches = [[torch.zeros(shape, dtype=_dtype(engine)) for _ in layers] for _ in "kv"]
    dims = [[{0: _dim("batch")} for _ in layers] for _ in "kv"]
    return caches, dims, [f"{kind}_cache_{i}" for kind in "kv" for i in layers]


def _rows() -> Tensor:
    return torch.zeros(_BATCH, _ROWS, dtype=torch.int64)


def _row_dims() -> dict[int, Any]:
    return {0: _dim("batch"), 1: _dim("rows")}


def _verify(engine: EngineConfig, module: nn.Module) -> LoweredGraph:
    """The target's graph with the plugins inside."""
    target, layout = engine.target, engine.layout
    batch, rows, wanted = _dim("batch"), _dim("rows"), _dim("logits_rows")
    starts: Any = {0: _dim("batch_ends")}  # batch + 1, which a file could not name
    b: Any = {0: batch}
    s: Any = {0: batch, 1: rows}
    r: Any = {0: wanted}
    caches, cache_dims, cache_names = _caches(engine, target)
    named: dict[str, tuple[Tensor, Any]] = {
        "input_ids": (_rows(), s),
        "positions": (_rows(), s),
        "write_indices": (torch.zeros(_BATCH, dtype=torch.int64), b),
        "slot_mapping": (_rows(), s),
        "query_start": (torch.zeros(_BATCH + 1, dtype=torch.int32), starts),
        "context_lens": (torch.zeros(_BATCH, dtype=torch.int32), b),
        "is_tree": (torch.zeros(_BATCH, dtype=torch.int32), b),
        "tree_mask": (torch.zeros(_BATCH, _ROWS, layout.mask_words, dtype=torch.int64), s),
        "logits_rows": (torch.zeros(_WANTED, dtype=torch.int64), r),
    }
    columns = [torch.ones(_WANTED, dtype=kind) for kind in COLUMN_DTYPES]
    parents = torch.zeros(_WANTED, dtype=torch.int32)
    row_start = torch.zeros(_BATCH + 1, dtype=torch.int32)
    outputs = ["logits", *(["hidden"] if engine.capture_layers else []), *VERDICT]
    return LoweredGraph(
        SlotVerify(
            module,  # type: ignore[arg-type]
            mask_kinds(target),
            layout.tokens_per_block,
            engine.speculative_rows,
        ),
        (*(tensor for tensor, _ in named.values()), columns, parents, row_start, *caches),
        (
            *(dims for _, dims in named.values()),
            [r] * len(columns),
            r,
            starts,
            *cache_dims,
        ),
        (*named, *SamplingColumns._fields, "parents", "row_start", *cache_names),
        (*outputs, *(f"{name}_out" for name in cache_names)),
        len(cache_names),
    )


def _method(engine: EngineConfig, part: _Part, module: nn.Module) -> LoweredGraph:
    """A graph of one method of the network, over rows of one width."""
    states, decoder = _states(engine, part), part.network.decoder
    width, method, given, made = {
        FUSE_GRAPH: (states, "fuse", "hidden_in", "features"),
        HEAD_GRAPH: (decoder.hidden_size if decoder else 0, "head", "ready", "logits"),
        MARGINALS_GRAPH: (states, "marginals", "hidden_in", "marginals"),
    }[part.graph]
    hidden = torch.zeros(_ROWS, width, dtype=_dtype(engine))
    dims = ({0: _dim("packed_rows")},)
    return LoweredGraph(Method(module, method, part.module), (hidden,), dims, (given,), (made,))


def _states(engine: EngineConfig, part: _Part) -> int:
    """Width of what a row of a network reads of the target."""
    return len(part.network.capture_layers) * engine.target.hidden_size


def _dim(name: str) -> Any:
    return Dim(name, min=1, max=_MAX_ROWS)


def _dtype(engine: EngineConfig) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return dtype
