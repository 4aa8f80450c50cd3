"""The methods of the variants, in the order in which they are listed."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.block.checkpoint import block_reader
from trtspec.speculative.block.ddtree import DDTreeDecodingConfig
from trtspec.speculative.block.dflash import DFLASH_FORMAT, DFLASH_NETWORK, DFlashDecodingConfig
from trtspec.speculative.block.dflash2 import (
    DFLASH2_FORMAT,
    DFLASH2_NETWORK,
    DFlash2DecodingConfig,
)
from trtspec.speculative.block.drafter import BlockDrafter, block_needs
from trtspec.speculative.block.dspark import DSPARK_FORMAT, DSPARK_NETWORK, DSparkDecodingConfig
from trtspec.speculative.block.jetspec import JetSpecDecodingConfig
from trtspec.speculative.block.recipe import DFLASH_RECIPE, DSPARK_RECIPE, JETSPEC_RECIPE

BLOCK_METHODS = (
    DraftMethod(
        DFlashDecodingConfig,
        "DFlash",
        block_needs,
        BlockDrafter.of,
        kinds=(DFLASH_NETWORK,),
        reader=block_reader(DFLASH_FORMAT),
        recipe=DFLASH_RECIPE,
        usual=("dflash:4", "ddtree:8,4,24"),
    ),
    DraftMethod(DDTreeDecodingConfig, "DDTree", block_needs, BlockDrafter.of),
    DraftMethod(
        JetSpecDecodingConfig, "JetSpec", block_needs, BlockDrafter.of, recipe=JETSPEC_RECIPE
    ),
    DraftMethod(
        DSparkDecodingConfig,
        "DSpark",
        block_needs,
        BlockDrafter.of,
        kinds=(DSPARK_NETWORK,),
        reader=block_reader(DSPARK_FORMAT),
        recipe=DSPARK_RECIPE,
        usual=("dspark:7",),
    ),
    DraftMethod(
        DFlash2DecodingConfig,
        "DFlash2",
        block_needs,
        BlockDrafter.of,
        kinds=(DFLASH2_NETWORK,),
        reader=block_reader(DFLASH2_FORMAT),
        usual=("dflash2:7",),
    ),
)
