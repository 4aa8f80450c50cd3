"""DFlash (arXiv 2602.06036): every slot of a block is guessed independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.strict import strict_config
from trtspec.speculative.block.backbone import BlockDraft
from trtspec.speculative.block.format import BlockFormat
from trtspec.speculative.block.graphs import block_kind
from trtspec.speculative.block.options import BlockRowsDecodingConfig, block_config
from trtspec.speculative.block.shape import BlockConfig


@strict_config()
@dataclass(frozen=True)
class DFlashConfig(BlockConfig):
    """The backbone with nothing added."""

    kind: ClassVar[str] = "dflash"
    title: ClassVar[str] = "DFlash"


@block_config()
@dataclass(frozen=True, kw_only=True)
class DFlashDecodingConfig(BlockRowsDecodingConfig):
    """DFlash: the best guess of every slot forms a chain; with topk or choices, a tree of guesses.
    Options: see `BlockRowsDecodingConfig`."""

    method: ClassVar[str] = "dflash"


DFLASH_NETWORK = block_kind(DFlashConfig, BlockDraft, __name__)
DFLASH_FORMAT = BlockFormat(
    DFlashDecodingConfig.method, DFlashConfig, "DFlash|Domino|DSpark", "dflash", rank=40
)
