"""The method toy, as another package registers it."""

from __future__ import annotations

from dataclasses import replace

from trtspec.speculative.base import DraftMethod

from .checkpoint import TOY_READER
from .drafter import ToyDrafter
from .graphs import TOY_NETWORK
from .options import ToyDecodingConfig

TOY = DraftMethod(
    ToyDecodingConfig,
    "the toy",
    ToyDrafter.needs_of,
    ToyDrafter.of,
    spellings=("toytown",),
    kinds=(TOY_NETWORK,),
    reader=TOY_READER,
)
TAKEN = replace(TOY, spellings=("ngram",))
