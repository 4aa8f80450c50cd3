"""The shape of a draft network that reads the target's hidden states: EAGLE-1, EAGLE-2, EAGLE-3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.config.model import ModelConfig
from trtspec.config.state_reader import StateReader
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError

EAGLE_VERSIONS = (1, 3)


@strict_config()
@dataclass(frozen=True)
class EagleConfig(StateReader):
    """An EAGLE draft network; its variants are these flags, never a checkpoint's name.

    version: 1 (EAGLE-1 and EAGLE-2, which differ only in the tree) or 3. decoder,
    target_hidden_size, capture_layers, draft_vocab_size, own_embedding, own_head: see
    `StateReader`.

    fc_bias: the projection of the states has a bias. first_input_norm: layer 0 norms its input (for
    version 3: the embedding). final_norm: a norm before the head. norm_before_residual: the
    residual of layer 0 is the normed state (version 3). norm_before_fc: one norm over all captured
    states; fc_norm: a norm for each of them. norm_output: the next pass gets the normed output.
    input_norms: norms on the embedding and on the state before they are joined (version 1: MTP
    modules).
    """

    kind: ClassVar[str] = "eagle"

    version: int
    decoder: ModelConfig
    target_hidden_size: int
    capture_layers: tuple[int, ...]
    draft_vocab_size: int
    fc_bias: bool = False
    first_input_norm: bool = True
    final_norm: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    input_norms: bool = False
    own_embedding: bool = False
    own_head: bool = True

    def __post_init__(self) -> None:
        if self.version not in EAGLE_VERSIONS:
            raise ConfigError(f"EAGLE version {self.version} is not one of {EAGLE_VERSIONS}")
        self._check_reading()
        if self.version == 1 and len(self.capture_layers) != 1:
            raise ConfigError(
                f"EAGLE-1 reads one hidden state, not those of layers {list(self.capture_layers)}"
            )
        if self.version == 1 and (
            self.norm_before_residual
            or self.norm_before_fc
            or self.fc_norm
            or (self.norm_output and not self.input_norms)
        ):
            raise ConfigError(
                "norm_before_residual, norm_before_fc, fc_norm and norm_output belong to EAGLE-3"
            )
        if self.version == 3 and self.input_norms:
            raise ConfigError("input_norms belongs to version 1; EAGLE-3 has first_input_norm")
        if self.norm_output and not self.final_norm:
            raise ConfigError("norm_output feeds back the final norm's output, but there is none")

    def for_steps(self, num_steps: int) -> EagleConfig:
        """The config itself: one layer is fed its own output, to any depth."""
        return self

    def describe(self) -> str:
        """A one-line description."""
        return (
            f"EAGLE-{self.version}, {self.decoder.num_layers} layers, hidden "
            f"{self.decoder.hidden_size}, {self.draft_vocab_size} of "
            f"{self.decoder.vocab_size} tokens, reads layers {list(self.capture_layers)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EagleConfig:
        """The inverse of `to_dict`, also after a round trip through JSON; ConfigError for an
        unknown key."""
        return from_dict(cls, data)
