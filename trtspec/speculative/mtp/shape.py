"""MtpConfig: the shape of a multi-token prediction module in the target's own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.config.strict import from_dict, strict_config
from trtspec.errors import ConfigError
from trtspec.speculative.eagle import EagleConfig


@strict_config()
@dataclass(frozen=True)
class MtpConfig(EagleConfig):
    """One MTP module (DeepSeek-V3, arXiv 2412.19437, 2.2): EAGLE-1 with a norm on the embedding and
    one on the state before they are joined, and a norm before the head.

    The module reads the output of the target's final norm. For deeper drafts it is fed its own
    output, with ``norm_output`` that of its norm (*MTP-Eagle*: one module, one cache).
    """

    kind: ClassVar[str] = "mtp"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.version == 1 and self.input_norms and self.final_norm):
            raise ConfigError(
                f"an MTP module has version 1, input_norms and final_norm, not {self.version}, "
                f"{self.input_norms} and {self.final_norm}"
            )

    def describe(self) -> str:
        return (
            f"MTP module, {self.decoder.num_layers} layers, hidden {self.decoder.hidden_size}, "
            f"{self.draft_vocab_size} of {self.decoder.vocab_size} tokens"
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MtpConfig:
        return from_dict(cls, data)
