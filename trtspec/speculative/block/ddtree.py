"""DDTree (arXiv 2604.12989): the most probable paths through a block's guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.speculative.block.options import BestFirstDecodingConfig, block_config


@block_config()
@dataclass(frozen=True, kw_only=True)
class DDTreeDecodingConfig(BestFirstDecodingConfig):
    """DDTree: the most probable paths through the guesses of a DFlash network. Options: see
    `BestFirstDecodingConfig`."""

    method: ClassVar[str] = "ddtree"
    draft_method: ClassVar[str] = "dflash"
