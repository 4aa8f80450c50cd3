"""From a part of a network to its graph over packed rows and paged caches, where attention is a
plugin.

Such a graph takes the inputs of an engine call, in the order of `EngineInputs`: nothing is padded,
the host computes no masks, and sequences share prefixes. A target's graph also samples and accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from trtspec.backends.inputs import RowInputs
from trtspec.backends.parts import Part, PartRole
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.backends.slots.lowering import cache_names, dim, lower, part_file, written
from trtspec.backends.tensorrt.paged_modules import (
    PagedContext,
    PagedFeaturePass,
    PagedPass,
    PagedVerify,
)
from trtspec.backends.tensorrt.verifying import VERIFIED
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.models.block import Kernels
from trtspec.models.block_map import without_kernels
from trtspec.models.layer_facts import decoder_caches
from trtspec.models.rows import PackedRows
from trtspec.models.signature import Signature, feature_signature, verify_signature
from trtspec.ops.sampling import SamplingColumns

ROWS = RowInputs._fields


def lower_paged(engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
    """The graph of a part.

    Raises:
        ConfigError: the plugin does not support its attention.
    """
    if part.role is PartRole.METHOD:  # of no rows
        return lower(engine, network, part, cut_masks=False)
    for what in _beyond_plugin(part):
        raise ConfigError(
            f"the {network.folder} has {what}, which the plugin PagedTreeAttention does not "
            "compute; build without --paged_attention"
        )
    return _MAKERS[part.role](engine, network, part)


def _beyond_plugin(part: Part) -> Iterator[str]:
    yield from without_kernels(_decoder(part), Kernels.PLUGINS)
    if any(kind.is_causal for kind in part.masks):
        yield "blocks in which no row sees a later one"


def _target(engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
    def sign() -> Signature:
        example = verify_signature(_decoder(part), engine.dtype, engine.layout)
        t, rows, caches = _dims(part)
        r: Any = {0: dim("logits_rows")}
        columns = SamplingColumns(*[r] * len(SamplingColumns._fields))
        # One more than there are requests, which a file could not name.
        return Signature(example.args, (t, rows, r, columns, r, {0: dim("judged_ends")}, caches))

    between = ("logits_rows", *SamplingColumns._fields, "parents", "row_start")
    outputs = ["logits", *(["hidden"] if engine.capture_layers else []), *VERIFIED]
    return _graph(
        network,
        part,
        sign,
        lambda module: PagedVerify(module, engine.rows),  # type: ignore[arg-type]
        (*ROWS, *between),
        outputs,
        engine.rows,
    )


def _pass(engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
    def sign() -> Signature:
        width = _decoder(part).hidden_size
        example = feature_signature(_decoder(part), engine.dtype, engine.layout, width)
        ids, placed, features, own = example.args
        t, rows, caches = _dims(part)
        if part.reads_features:
            return Signature((ids, placed, features, own), (t, rows, t, caches))
        return Signature((ids, placed, own), (t, rows, caches))

    if part.reads_features:
        over, given, made = PagedFeaturePass, (*ROWS, "features"), ["ready", "next_features"]
    else:
        over, given, made = PagedPass, ROWS, ["ready"]  # type: ignore[assignment]
    return _graph(network, part, sign, lambda module: over(module, part.module), given, made)


def _context(engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
    """A graph that writes rows made from hidden states only."""

    def sign() -> Signature:
        example = feature_signature(_decoder(part), engine.dtype, engine.layout, part.states)
        t, rows, caches = _dims(part)
        return Signature(example.args[1:], (rows, t, caches))

    return _graph(network, part, sign, PagedContext, (*ROWS[1:], "hidden_in"), ["features"])


_MAKERS: dict[PartRole, Callable[[EngineShape, NetworkShape, Part], Graph]] = {
    PartRole.TARGET: _target,
    PartRole.PASS: _pass,
    PartRole.CONTEXT: _context,
}


def _graph(
    network: NetworkShape,
    part: Part,
    sign: Callable[[], Signature],
    over: Callable[[nn.Module], nn.Module],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *facts: int,
) -> Graph:
    """A graph with the caches after its own inputs and outputs."""
    caches = cache_names(_decoder(part))
    return Graph(
        part.name,
        network.folder,
        part_file(network, part),
        network.make,
        sign,
        over,
        facts=("paged", *facts),
        inputs=(*inputs, *caches),
        outputs=(*outputs, *written(caches)),
        num_caches=len(caches),
    )


def _dims(part: Part) -> tuple[Any, Any, Any]:
    """The dynamic dimensions of a value for each row, of `PackedRows`, and of caches."""
    t: Any = {0: dim("rows")}
    b: Any = {0: dim("requests")}
    ends: Any = {0: dim("request_ends")}  # one more, which a file could not name
    return (
        t,
        PackedRows(t, t, b, ends, b, b, t),
        [({0: dim("blocks")},) * len(cache) for cache in decoder_caches(_decoder(part))],
    )


def _decoder(part: Part) -> ModelConfig:
    assert part.decoder is not None, "a part over rows has a decoder"
    return part.decoder


def paged_profiles(engine: EngineShape) -> list[dict[str, tuple[int, int, int]]]:
    """Smallest, usual and largest sizes of the dynamic dimensions; see `profiles`."""
    batch, widest, step = engine.max_batch_size, engine.rows, engine.max_num_tokens
    verify, most = batch * engine.verify_rows, batch * widest
    blocks = batch * (engine.layout.blocks_per_sequence + 2)  # those of a batch, begun ones as well

    def of(rows: tuple[int, int, int], logits: tuple[int, int, int]) -> dict[str, Any]:
        return {
            "rows": rows,
            "packed_rows": rows,
            "logits_rows": logits,
            "requests": (1, batch, batch),
            "request_ends": (2, batch + 1, batch + 1),
            "judged_ends": (1, batch + 1, batch + 1),
            "blocks": (1, blocks, blocks),
        }

    # A draft may guess by rows behind those of a chunk.
    chunk = (1, step, step + most)
    return [of((1, verify, most), (1, verify, most)), of(chunk, (1, batch, chunk[2]))]
