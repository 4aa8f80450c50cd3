"""Part ``parity``: every op on the device, on small random cases, beside the CPU's ops; and a call
that samples and accepts, replayed as a CUDA graph.

What decides (tokens, accepted rows, moved caches) must be equal; what is summed, close.
``python -m trtspec.bench.gpu_bringup.parity`` runs the smallest cases alone, for compute-sanitizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.cuda_graph import CudaGraphSession
from trtspec.backends.device import device_problem
from trtspec.backends.inputs import EngineInputs
from trtspec.backends.judging import JudgingSession
from trtspec.backends.session import Session
from trtspec.bench.gpu_bringup.part import PartFailed, Place
from trtspec.bench.ops import BLOCK_SIZE, AttentionShape, attention_inputs
from trtspec.config.kv import CacheLayout
from trtspec.executor.buckets import Bucket, extend, no_rows, pad
from trtspec.ops import paged_tree_attention
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.kv_compact import kv_compact
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns, draft_candidates, sample
from trtspec.ops.tree_mask import tree_mask

_SMALL = AttentionShape(4, 2, 64)
_TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}

Case = Callable[[str], list[Tensor]]
"""What an op gives on a device for the same inputs; outputs whose dtype is a float are close."""


def run(place: Place) -> Mapping[str, Any]:
    """Compare all cases; the first that differ are named."""
    problem = None if place.is_rehearsal else device_problem("cuda")
    if problem is not None:
        raise PartFailed(problem)
    rows = [compare(name, case, place.device) for name, case in cases().items()]
    wrong = [f"{row['case']}: {row['found']}" for row in rows if row["found"] != "equal"]
    if wrong:
        raise PartFailed("; ".join(wrong))
    return {"cases": rows}


def compare(name: str, case: Case, device: str) -> dict[str, Any]:
    """One case: whether it is equal, or how far it is off."""
    try:
        pairs = list(zip(case("cpu"), (x.cpu() for x in case(device)), strict=True))
    except Exception as error:
        return {"case": name, "found": f"{type(error).__name__}: {error}"}
    worst = 0.0
    for expected, found in pairs:
        if expected.dtype in _TOLERANCE:
            one, other, most = expected.float(), found.float(), _TOLERANCE[expected.dtype]
            apart = (one - other)[one.isfinite()].abs().nan_to_num(torch.inf)
            off = max(apart.tolist(), default=0.0)
            worst = max(worst, off)
            if not torch.isclose(other, one, rtol=0, atol=most).all():
                return {"case": name, "found": f"{off:.2g} off"}
        elif not torch.equal(expected, found):
            return {"case": name, "found": f"{int((expected != found).sum())} values differ"}
    return {"case": name, "found": "equal", "largest difference": worst}


def cases() -> dict[str, Case]:
    """By name; each makes its inputs anew from a seed."""
    found: dict[str, Case] = {}
    for dtype in _TOLERANCE:
        for context, rows in ((0, 5), (70, 1), (300, 9), (33, 70)):
            found[f"attention {dtype} context {context} rows {rows}"] = attention(
                dtype, context, rows
            )
    for vocab in (7, 2049, 128256):
        found[f"sample vocabulary {vocab}"] = sampling(vocab)
        found[f"draft_candidates vocabulary {vocab}"] = candidates(vocab)
    found["a judged call"] = judged_calls
    return {**found, "accept": acceptance, "kv_compact": compaction, "tree_mask": masks}


def small_cases() -> dict[str, Case]:
    """Of each op one, for tools that make a kernel a thousand times slower."""
    return {
        "attention": attention(torch.bfloat16, 40, 5),
        "sample": sampling(99),
        "draft_candidates": candidates(99),
        "accept": acceptance,
        "kv_compact": compaction,
    }


def attention(dtype: torch.dtype, context: int, rows: int) -> Case:
    def case(device: str) -> list[Tensor]:
        torch.manual_seed(context + rows)
        blocks = -(-(context + rows) // BLOCK_SIZE)
        dims = (2, blocks, BLOCK_SIZE, _SMALL.kv_heads, _SMALL.head_dim)
        k, v = torch.randn(dims).to(dtype).to(device)
        inputs = attention_inputs(_SMALL, dtype, k, v, context, rows)
        return [paged_tree_attention(*inputs), k, v]

    return case


def sampling_inputs(vocab: int, device: str) -> list[Tensor]:
    """Logits of six rows, and sampling values that differ from row to row."""
    noise, rows = torch.Generator().manual_seed(vocab), 6
    columns = [torch.zeros(rows, dtype=kind) for kind in COLUMN_DTYPES]
    columns[0] = torch.tensor([0.0, 0.7, 1.0, 1.0, 2.5, 0.01])
    columns[1] = torch.tensor([0, 0, 1, 5, 50, -1], dtype=torch.int32)
    columns[2] = torch.tensor([1.0, 0.9, 0.5, 1.0, 0.999, 1.0])
    columns[3] = torch.tensor([0.0, 0.0, 0.1, 0.5, 0.0, 0.0])
    columns[4], columns[6] = torch.arange(rows) - 2, torch.arange(rows) * 7
    logits = 4 * torch.randn(rows, vocab, generator=noise)
    return [tensor.to(device) for tensor in (logits, *columns)]


def sampling(vocab: int) -> Case:
    return lambda device: [sample(*sampling_inputs(vocab, device))]


def candidates(vocab: int) -> Case:
    def case(device: str) -> list[Tensor]:
        a, b, c, d, e, f, g, h = sampling_inputs(vocab, device)
        return list(draft_candidates(a, b, c, d, e, f, g, h, None, min(vocab, 4)))

    return case


def acceptance(device: str) -> list[Tensor]:
    """Nine requests of up to 40 rows, some without any."""
    noise = torch.Generator().manual_seed(9)
    counts = torch.randint(0, 40, (9,), generator=noise)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    total = int(starts[-1])
    sampled, tokens = torch.randint(2, (2, total), generator=noise)
    rows = torch.cat([torch.arange(int(count)) for count in counts])
    parents = (torch.rand(total, generator=noise) * rows).int()
    parents[rows == 0] = -1
    a, b, c, d = (x.to(device) for x in (sampled, tokens, parents, starts))
    return list(accept_trees(a, b, c, d, 40))


class _Table:
    """A session whose logits are those of a row's token in ``table [V, V]``."""

    def __init__(self, table: Tensor) -> None:
        self._table = table

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        assert inputs.rows is not None
        return [self._table[inputs.rows.input_ids[inputs.logits_rows]]]


def judged_calls(device: str) -> list[Tensor]:
    """What two calls of a target say that judges; on CUDA, both are replays of one graph."""
    table = 3 * torch.randn(50, 50, generator=torch.Generator().manual_seed(5))
    session: Session = JudgingSession(_Table(table.to(device)), 6)
    if device == "cuda":
        session = CudaGraphSession(session, [(16, 3, 16)])
    found = []
    for root in (4, 9):
        inputs = _judged_call(table, root)
        given = inputs.filled([tensor.to(device) for tensor in inputs.flat()])
        found += [output.clone() for output in session.run(given)]  # the next call writes these
    return found


def _judged_call(table: Tensor, root: int) -> EngineInputs:
    """A greedy chain whose drafts are all right, a sampled tree, and padding."""
    bucket, layout = Bucket(3, 16, 16), CacheLayout(BLOCK_SIZE, 1, 1)
    likely = table.argmax(-1).tolist()
    tokens = [root]
    for _ in range(5):
        tokens.append(likely[tokens[-1]])
    child = likely[root + 1]
    tokens += [root + 1, 0, child, likely[child], 1]
    columns = [torch.zeros(bucket.logits, dtype=kind) for kind in COLUMN_DTYPES]
    columns[0][6:11], columns[4][6:11] = 0.5, root  # temperature and seed
    columns[6][:11] = torch.tensor([*range(6), 0, 1, 1, 2, 2])
    parents = torch.tensor([-1, 0, 1, 2, 3, 4, -1, 0, 0, 2, 1], dtype=torch.int32)
    return EngineInputs(
        rows=pad(no_rows(layout)._replace(input_ids=torch.tensor(tokens)), bucket),
        logits_rows=extend(torch.arange(len(tokens)), bucket.logits, 0),
        columns=SamplingColumns._make(columns),
        parents=extend(parents, bucket.logits, 0),
        row_start=torch.tensor([0, 6, 11, 11], dtype=torch.int32),
    )


def compaction(device: str) -> list[Tensor]:
    torch.manual_seed(4)
    caches = [torch.randn(6, 16, 2, 40).bfloat16().to(device) for _ in range(4)]
    source, wanted = torch.tensor([9, 14, 40, -1]), torch.tensor([8, 9, 39, 3])
    kv_compact(caches[:2], caches[2:], source.to(device), wanted.to(device))
    return caches


def masks(device: str) -> list[Tensor]:
    """Of two requests: a tree of three rows, and a chain of two."""
    rows, starts, contexts, trees, bits = (
        tensor.to(device)
        for tensor in (
            torch.tensor([[9, 10, 10, 4, 5], [9, 10, 11, 24, 25]]),
            torch.tensor([0, 3, 5], dtype=torch.int32),
            torch.tensor([9, 4], dtype=torch.int32),
            torch.tensor([True, False]),
            torch.tensor([[1], [3], [5], [0], [0]]),
        )
    )
    positions, slots = rows
    return [
        tree_mask(
            positions, slots, starts, contexts, trees, bits, width=4, length=20, dtype=torch.bool
        )
    ]


if __name__ == "__main__":
    for name, case in small_cases().items():
        made = case("cuda")
        torch.cuda.synchronize()
        print(name, [tuple(tensor.shape) for tensor in made], flush=True)
