"""From a part of a network to its graph: the module that it covers, and its inputs.

A block network has two parts: one writes K/V from the target's hidden states, the other is the pass
over blocks. A single graph for both would update a cache twice, which TensorRT-RTX refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from trtspec.backends.parts import MaskKind, Part, PartRole
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.backends.slots.lowered import (
    SlotContext,
    SlotFeaturePass,
    SlotMethod,
    SlotModel,
    SlotPass,
)
from trtspec.config.model import ModelConfig
from trtspec.models.causal_lm import new_slot_caches
from trtspec.models.layer_facts import decoder_caches
from trtspec.models.signature import Signature

SUFFIX = ".onnx"
BATCH, ROWS, WANTED = 2, 4, 5
"""Sizes of the examples. They differ from each other and from BATCH + 1, so that export cannot
confuse them."""
SEEN = "seen"
"""The name of the length of cut masks."""
_MAX_ROWS = 1 << 20


def part_file(network: NetworkShape, part: Part) -> str:
    """The file of a part's graph, relative to the engine folder."""
    return "-".join(filter(None, (network.folder, part.name))) + SUFFIX


def lower(engine: EngineShape, network: NetworkShape, part: Part, cut_masks: bool) -> Graph:
    """The graph of a part. ``cut_masks``: whether masks, and with them what attention reads of the
    caches, end after the last position that a row of a call can see (see `Padding`)."""
    return _MAKERS[part.role](engine, network, part, cut_masks)


def mask_name(kind: MaskKind) -> str:
    """``mask``, ``mask_16`` for a window of 16, ``causal_mask``, ``causal_mask_16``."""
    name = "causal_mask" if kind.is_causal else "mask"
    return f"{name}_{kind.window}" if kind.window else name


@dataclass(frozen=True)
class _Extra:
    """An input besides rows and caches: an example and its dynamic dimensions."""

    name: str
    example: Callable[[], Tensor]
    dims: Mapping[int, Any]


def _target(engine: EngineShape, network: NetworkShape, part: Part, cut_masks: bool) -> Graph:
    extra = _Extra(
        "logits_rows", lambda: torch.zeros(WANTED, dtype=torch.int64), {0: dim("logits_rows")}
    )
    outputs = ["logits", *(["hidden"] if engine.capture_layers else [])]
    return _with_rows(
        engine,
        network,
        part,
        lambda module: SlotModel(module, part.masks),  # type: ignore[arg-type]
        extra,
        outputs,
        cut_masks,
    )


def _pass(engine: EngineShape, network: NetworkShape, part: Part, cut_masks: bool) -> Graph:
    if not part.reads_features:
        return _with_rows(
            engine,
            network,
            part,
            lambda module: SlotPass(module, part.masks, part.module),
            None,
            ["ready"],
            cut_masks,
        )
    width = _decoder(part).hidden_size
    extra = _Extra(
        "features", lambda: torch.zeros(BATCH, ROWS, width, dtype=engine.dtype), row_dims()
    )
    return _with_rows(
        engine,
        network,
        part,
        lambda module: SlotFeaturePass(module, part.masks, part.module),
        extra,
        ["ready", "next_features"],
        cut_masks,
    )


def _with_rows(
    engine: EngineShape,
    network: NetworkShape,
    part: Part,
    over: Callable[[nn.Module], nn.Module],
    extra: _Extra | None,
    outputs: Sequence[str],
    cut_masks: bool,
) -> Graph:
    """A graph over padded rows and caches; ``extra`` is an input between the two."""
    between = [] if extra is None else [extra]

    def sign() -> Signature:
        length = engine.layout.tokens_per_block
        seen, mask_dims = length, {0: dim("batch"), 2: dim("rows")}
        if cut_masks:
            seen, mask_dims[3] = length - 1, Dim(SEEN, min=1, max=length)
        ids, starts = example_rows(), torch.zeros(BATCH, dtype=torch.int64)
        masks = [torch.ones(BATCH, 1, ROWS, seen, dtype=torch.bool) for _ in part.masks]
        caches, cache_dims = example_caches(engine, _decoder(part))
        return Signature(
            (ids, ids.clone(), starts, masks, *(given.example() for given in between), caches),
            (
                *(row_dims(), row_dims(), {0: dim("batch")}, [mask_dims] * len(part.masks)),
                *(given.dims for given in between),
                cache_dims,
            ),
        )

    caches = cache_names(_decoder(part))
    return Graph(
        part.name,
        network.folder,
        part_file(network, part),
        network.make,
        sign,
        over,
        inputs=(
            *("input_ids", "positions", "write_indices", *map(mask_name, part.masks)),
            *(given.name for given in between),
            *caches,
        ),
        outputs=(*outputs, *written(caches)),
        num_caches=len(caches),
    )


def _context(engine: EngineShape, network: NetworkShape, part: Part, cut_masks: bool) -> Graph:
    """A graph that writes rows made from hidden states only."""

    def sign() -> Signature:
        hidden = torch.zeros(BATCH, ROWS, part.states, dtype=engine.dtype)
        caches, cache_dims = example_caches(engine, _decoder(part))
        return Signature(
            (example_rows(), torch.zeros(BATCH, dtype=torch.int64), hidden, caches),
            (row_dims(), {0: dim("batch")}, row_dims(), cache_dims),
        )

    caches = cache_names(_decoder(part))
    return Graph(
        part.name,
        network.folder,
        part_file(network, part),
        network.make,
        sign,
        SlotContext,
        inputs=("positions", "write_indices", "hidden_in", *caches),
        outputs=("features", *written(caches)),
        num_caches=len(caches),
    )


def _method(engine: EngineShape, network: NetworkShape, part: Part, cut_masks: bool) -> Graph:
    """A graph of one method of the network, over rows of one width."""
    method = part.method
    assert method is not None, "a part of this role says which"

    def sign() -> Signature:
        hidden = torch.zeros(ROWS, method.width, dtype=engine.dtype)
        return Signature((hidden,), ({0: dim("packed_rows")},))

    return Graph(
        part.name,
        network.folder,
        part_file(network, part),
        network.make,
        sign,
        lambda module: SlotMethod(module, method.name, part.module),
        inputs=(method.given,),
        outputs=(method.made,),
    )


_MAKERS: Mapping[PartRole, Callable[[EngineShape, NetworkShape, Part, bool], Graph]] = {
    PartRole.TARGET: _target,
    PartRole.PASS: _pass,
    PartRole.CONTEXT: _context,
    PartRole.METHOD: _method,
}


def example_caches(engine: EngineShape, decoder: ModelConfig) -> tuple[Any, Any]:
    """All caches, and their dynamic dimensions."""
    caches = new_slot_caches(decoder, BATCH, engine.layout.tokens_per_block, engine.dtype)
    return caches, [({0: dim("batch")},) * len(cache) for cache in caches]


def cache_names(decoder: ModelConfig) -> list[str]:
    """The names of a graph's caches, in order."""
    return [
        f"{buffer.name}_cache_{i}"
        for i, buffers in enumerate(decoder_caches(decoder))
        for buffer in buffers
    ]


def written(caches: Sequence[str]) -> list[str]:
    """The names of caches after a call."""
    return [f"{name}_out" for name in caches]


def example_rows() -> Tensor:
    """An integer for each padded row."""
    return torch.zeros(BATCH, ROWS, dtype=torch.int64)


def row_dims() -> dict[int, Any]:
    """The dynamic dimensions of a value for each padded row."""
    return {0: dim("batch"), 1: dim("rows")}


def dim(name: str) -> Any:
    """A dynamic dimension."""
    return Dim(name, min=1, max=_MAX_ROWS)


def _decoder(part: Part) -> ModelConfig:
    assert part.decoder is not None, "a part over rows has a decoder"
    return part.decoder
