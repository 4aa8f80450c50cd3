"""The methods dflash and ddtree, which share their drafts."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.block.checkpoint import DFLASH_READER
from trtspec.speculative.block.drafter import block_drafter, block_needs
from trtspec.speculative.block.graphs import DFLASH_NETWORK
from trtspec.speculative.block.options import DDTreeDecodingConfig, DFlashDecodingConfig
from trtspec.speculative.block.recipe import DFLASH_RECIPE

DFLASH = DraftMethod(
    DFlashDecodingConfig,
    "DFlash",
    block_needs,
    block_drafter,
    kinds=(DFLASH_NETWORK,),
    reader=DFLASH_READER,
    recipe=DFLASH_RECIPE,
    usual=("dflash:4", "ddtree:8,4,24"),
)
DDTREE = DraftMethod(DDTreeDecodingConfig, "DDTree", block_needs, block_drafter)
