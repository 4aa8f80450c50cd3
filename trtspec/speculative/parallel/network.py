"""P-EAGLE's network: EAGLE-3 with a learned state for the rows that the target has not seen."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.speculative.eagle import EagleDraft
from trtspec.speculative.parallel.shape import PEagleConfig


class PEagleDraft(EagleDraft):
    """`EagleDraft` with ``mask_hidden [n * H_t]`` besides (P-EAGLE, arXiv 2602.01469). It takes the
    place of the target's states in mask rows, so it goes through ``fuse`` as those do."""

    mask_hidden: Tensor

    def __init__(
        self,
        config: PEagleConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__(config, target, dtype, formats=formats)
        self.register_buffer("mask_hidden", torch.empty(config.hidden_in, dtype=dtype))
