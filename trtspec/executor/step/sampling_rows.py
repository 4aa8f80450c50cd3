"""The sampling inputs of a step's rows (cpp/include/trtspec/runtime/sampler.hpp).

Rows are sampled on the host, in one call of C++ that also walks the trees and ends texts, or with
the tensors that ops and engines take. Each item that samples has a row for its newest token, then
one for each node of its draft; other items have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.staging import HostRead
from trtspec.executor.engines.verify_call import VerifyInputs, VerifyOutputs
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import REASONS, StepResult
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.logits_mask import MaskColumns
from trtspec.ops.sampling import SamplingColumns

_Columns = tuple[list[int], list[int], list[int], list[int]]
_class: Any = torch.classes.trtspec.RowSampler
# Looking the methods up costs as much as much of what they do.
_root_columns: Callable[[list[int]], list[Tensor]] = _class.root_columns
_tensors: Callable[[Tensor, int], list[Tensor]] = _class.tensors
_verify: Callable[..., _Columns] = _class.verify
_decode: Callable[..., _Columns] = _class.decode
_NO_MASK = MaskColumns()


def root_columns(requests: Sequence[Request]) -> SamplingColumns:
    """Columns for one row per request, that of its newest token."""
    return SamplingColumns._make(_root_columns([request.tokens.address for request in requests]))


def verify_inputs(plan: StepPlan, drafts: DraftBatch) -> VerifyInputs:
    """The inputs as tensors, on the host."""
    made = _tensors(plan.table, drafts.address)
    return VerifyInputs(SamplingColumns._make(made[:7]), *made[7:])


def verify(
    plan: StepPlan,
    drafts: DraftBatch,
    logits: Tensor,
    forced: Sequence[int] = (),
    mask: MaskColumns | None = None,
) -> StepResult:
    """Sample the rows of ``logits [R, V]`` f32 on the host, and walk the trees. ``forced``: for
    each item, see `accept`; by default nothing is forced. ``mask``: changes the logits in place
    first."""
    return _result(_verify(plan.table, drafts.address, logits, forced, *(mask or _NO_MASK)), drafts)


def read(drafts: DraftBatch, outputs: VerifyOutputs) -> HostRead:
    """Begin to read the outputs, on any device, in one copy to the host."""
    sampled, accepted, emitted = outputs
    if accepted is None or emitted is None:
        return HostRead([sampled])
    # CUDA's op pads to the rows of all requests; none has walked more than its own.
    return HostRead([sampled, accepted[:, : 1 + max(drafts.counts)], emitted])


def decode(plan: StepPlan, drafts: DraftBatch, outputs: HostRead) -> StepResult:
    """The result from outputs that are being read."""
    sampled, *walked = outputs.wait()
    accepted, emitted = walked or (  # roots alone: each emits its own token
        torch.zeros(len(drafts), 1, dtype=torch.int32),
        torch.ones(len(drafts), dtype=torch.int32),
    )
    return _result(_decode(plan.table, drafts.address, sampled, accepted, emitted), drafts)


def _result(columns: _Columns, drafts: DraftBatch) -> StepResult:
    start, tokens, rows, ends = columns
    return StepResult(start, tokens, rows, [REASONS[end] for end in ends], drafts=drafts)
