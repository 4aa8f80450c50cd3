"""A target that samples and accepts: by plugins in its graph, or by kernels beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

from trtspec.backends.parts import Part
from trtspec.backends.session import ModuleSession, Session
from trtspec.backends.shape import EngineShape, Graph
from trtspec.backends.slots.backend import SlotParts
from trtspec.backends.slots.lowering import (
    BATCH,
    ROWS,
    SEEN,
    WANTED,
    cache_names,
    dim,
    example_caches,
    example_rows,
    part_file,
    row_dims,
    written,
)
from trtspec.backends.slots.verify import (
    PaddedInputs,
    VerifyGraph,
    VerifyNetwork,
    VerifySession,
)
from trtspec.backends.tensorrt.kernel_session import KernelSession
from trtspec.backends.tensorrt.lowered import SlotVerify
from trtspec.models.signature import Signature, verify_signature
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns

VERIFIED = ("sampled", "accepted_rows", "num_emitted")
"""The additional outputs of a target's graph with plugins, see `SlotVerify`."""


def lower_with_plugins(engine: EngineShape, part: Part) -> Graph:
    """The target's graph with the plugins inside."""
    decoder, length = part.decoder, engine.layout.tokens_per_block
    assert decoder is not None
    caches = cache_names(decoder)

    def sign() -> Signature:
        starts: Any = {0: dim("batch_ends")}  # batch + 1, which a file could not name
        b: Any = {0: dim("batch")}
        s: Any = row_dims()
        r: Any = {0: dim("logits_rows")}
        tensors, cache_dims = example_caches(engine, decoder)
        rows = PaddedInputs(
            input_ids=example_rows(),
            positions=example_rows(),
            write_indices=torch.zeros(BATCH, dtype=torch.int64),
            slot_mapping=example_rows(),
            query_start=torch.zeros(BATCH + 1, dtype=torch.int32),
            context_lens=torch.zeros(BATCH, dtype=torch.int32),
            is_tree=torch.zeros(BATCH, dtype=torch.int32),
            tree_mask=torch.zeros(BATCH, ROWS, engine.layout.mask_words, dtype=torch.int64),
        )
        view = torch.zeros(length - 1, dtype=torch.int64)
        wanted = torch.zeros(WANTED, dtype=torch.int64)
        columns = [torch.ones(WANTED, dtype=kind) for kind in COLUMN_DTYPES]
        parents = torch.zeros(WANTED, dtype=torch.int32)
        row_start = torch.zeros(BATCH + 1, dtype=torch.int32)
        return Signature(
            (*rows, view, wanted, columns, parents, row_start, tensors),
            (
                *PaddedInputs(s, s, b, s, starts, b, b, s),
                {0: Dim(SEEN, min=1, max=length)},
                *(r, [r] * len(columns), r, starts),
                cache_dims,
            ),
        )

    outputs = ["logits", *(["hidden"] if engine.capture_layers else []), *VERIFIED]
    return Graph(
        part.name,
        engine.target.folder,
        part_file(engine.target, part),
        engine.target.make,
        sign,
        lambda module: SlotVerify(module, part.masks, engine.rows),  # type: ignore[arg-type]
        facts=("plugins", engine.rows),
        inputs=(
            *(*PaddedInputs._fields, "view", "logits_rows"),
            *(*SamplingColumns._fields, "parents", "row_start"),
            *caches,
        ),
        outputs=(*outputs, *written(caches)),
        num_caches=len(caches),
    )


def open_verifying(parts: SlotParts, with_plugins: bool) -> Session:
    """The session of a target that samples and accepts. ``with_plugins``: its graph has them."""
    engine, (part,) = parts.engine, parts.network.parts
    assert part.decoder is not None
    length, widest = engine.layout.tokens_per_block, engine.rows
    graph = parts.over_caches(part)
    session: VerifySession
    if with_plugins:
        session = VerifyGraph(graph, length, engine.device)
    else:
        session = KernelSession(graph, [kind.window for kind in part.masks], widest)
    batches = parts.graph_batches
    network = VerifyNetwork(session, length, widest, engine.device, batches, view=parts.view)
    signature = verify_signature(part.decoder, engine.dtype, engine.layout)
    return ModuleSession(network, signature, engine.device)
