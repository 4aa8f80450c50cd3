"""The method medusa."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.medusa.checkpoint import IN_TARGET, MEDUSA_READER
from trtspec.speculative.medusa.drafter import MedusaDrafter
from trtspec.speculative.medusa.graphs import MEDUSA_HEADS
from trtspec.speculative.medusa.options import MedusaDecodingConfig

MEDUSA = DraftMethod(
    MedusaDecodingConfig,
    "Medusa",
    MedusaDrafter.needs_of,
    lambda config, draft: MedusaDrafter(draft.engine, config),
    kinds=(MEDUSA_HEADS,),
    reader=MEDUSA_READER,
    in_target=IN_TARGET,
)
