"""MtpModulesConfig: several multi-token prediction modules, one for each depth of a draft."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.config.kv import CacheDtype
from trtspec.config.model import ModelConfig
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError
from trtspec.speculative.mtp.shape import MtpConfig


@strict_config()
@dataclass(frozen=True)
class MtpModulesConfig:
    """The modules of a checkpoint, or those that draft: module i (from 0) guesses the token i + 2
    places after the one whose state it reads, from what module i - 1 computed from that state
    (DeepSeek-V3, arXiv 2412.19437, 2.2; TensorRT-LLM's *vanilla* MTP).

    module: the shape of each. Their layers are consecutive in one cache.
    """

    kind: ClassVar[str] = "mtp_modules"

    module: MtpConfig
    num_modules: int

    def __post_init__(self) -> None:
        if self.num_modules < 1:
            raise ConfigError(f"num_modules={self.num_modules} must be at least 1")

    @property
    def decoder(self) -> ModelConfig:
        """All their layers."""
        decoder = self.module.decoder
        return dataclasses.replace(decoder, layers=decoder.layers.times(self.num_modules))

    @property
    def ranks(self) -> int:
        """See `DraftConfig.ranks`."""
        return self.module.ranks

    @property
    def decoders(self) -> Mapping[str, ModelConfig]:
        """See `DraftConfig.decoders`."""
        of_one, modules = self.module.decoders.items(), range(self.num_modules)
        return {f"modules.{i}.{start}": decoder for i in modules for start, decoder in of_one}

    def sharded(self, ranks: int) -> MtpModulesConfig:
        """See `StateReader.sharded`."""
        return dataclasses.replace(self, module=self.module.sharded(ranks))

    @property
    def capture_layers(self) -> tuple[int, ...]:
        return self.module.capture_layers

    @property
    def hidden_in(self) -> int:
        """Width of the hidden states that one row reads."""
        return self.module.hidden_in

    @property
    def lookahead(self) -> int:
        """Tokens after its own on which a row depends: module i reads the token i + 1 places
        further on."""
        return self.num_modules

    def with_caches(self, dtype: CacheDtype | None) -> MtpModulesConfig:
        """See `ModelConfig.with_caches`."""
        return dataclasses.replace(self, module=self.module.with_caches(dtype))

    def for_steps(self, num_steps: int) -> MtpModulesConfig:
        """The modules that drafts of ``num_steps`` need; ConfigError if there are fewer."""
        if num_steps > self.num_modules:
            raise ConfigError(
                f"drafts of {num_steps} steps take as many MTP modules, the checkpoint has "
                f"{self.num_modules}; lower num_speculative_tokens (max_draft_len, "
                f"num_nextn_predict_layers) to {self.num_modules}, or give use_mtp_vanilla=False: "
                "then the first module drafts at every depth"
            )
        return dataclasses.replace(self, num_modules=num_steps)

    def describe(self) -> str:
        """A one-line description."""
        return f"{self.num_modules} times {self.module.describe()}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MtpModulesConfig:
        """The inverse of `to_dict`, also after a round trip through JSON; ConfigError for an
        unknown key."""
        return from_dict(cls, data)
