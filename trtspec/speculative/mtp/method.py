"""The method mtp."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter, hidden_state_needs
from trtspec.speculative.mtp.checkpoint import IN_TARGET, MTP_READER
from trtspec.speculative.mtp.graphs import MTP_MODULE, MTP_MODULES
from trtspec.speculative.mtp.options import MtpDecodingConfig

MTP = DraftMethod(
    MtpDecodingConfig,
    "MTP",
    hidden_state_needs,
    HiddenStateDrafter.of,
    spellings=("mtpeagle", "nextn"),
    ending="mtp",  # deepseek_mtp, mimo_mtp and so on: the checkpoint says which
    kinds=(MTP_MODULE, MTP_MODULES),
    reader=MTP_READER,
    in_target=IN_TARGET,
    by_target=True,
)
