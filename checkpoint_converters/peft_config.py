"""adapter_config.json of PEFT: which of it is read and what is refused by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_converters.containers.safetensors_files import read_json
from trtspec.errors import CheckpointError

CONFIG = "adapter_config.json"

_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "bias": (("none",), "trained biases are not read; train it with bias='none'"),
    "use_dora": ((False,), "DoRA is not offered; merge it into its base"),
    "use_qalora": ((False,), "QALoRA is not offered; merge it into its base"),
    "lora_bias": ((False,), "adapters have no biases here; merge it into its base"),
    "fan_in_fan_out": ((False,), "no model that is run here has transposed weights"),
    "modules_to_save": (((),), "whole modules of its own are not read; merge it into its base"),
    "trainable_token_indices": (((), {}), "embeddings are not adapted; merge it into its base"),
    "target_parameters": (((),), "parameters of experts are not adapted; merge it into its base"),
    "layer_replication": (((),), "layers are not repeated; merge it into its base"),
    "alora_invocation_tokens": (((),), "it is on from the first token on; train it without"),
    "init_lora_weights": (
        (True, False, "gaussian", "orthogonal", "eva"),
        "it changed its base as well; save it with path_initial_model_for_weight_conversion",
    ),
}
"""Values without effect, beside null, and the remedy for any other."""
_READ = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "peft_type")
_SELECTS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
_OF_NO_EFFECT = (
    *("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "task_type"),
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("megatron_config", "megatron_core", "qalora_group_size", "runtime_config", "peft_version"),
    *("ensure_weight_tying",),
)
"""Keys that only concern training."""


@dataclass(frozen=True)
class PeftConfig:
    """The config of an adapter; ``file`` is named in messages."""

    file: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> PeftConfig:
        """The config in a folder. Raises CheckpointError without one, and for unsupported settings,
        by name."""
        file = folder / CONFIG
        values = read_json(file)
        own = cls(file, values)
        kind = values.get("peft_type")
        if kind != "LORA":
            raise own.refuse(f"peft_type is {kind!r}; adapters of type 'LORA' are read")
        known = {*_READ, *_SELECTS, *_OF_NO_EFFECT}
        for key, value in values.items():
            if value is None or key in known:
                continue
            plain = tuple(value) if isinstance(value, list) else value
            accepted, why = _REFUSED.get(key, ((False, (), {}, ""), "it is not known here"))
            if not any(type(plain) is type(each) and plain == each for each in accepted):
                raise own.refuse(f"{key} is {value!r:.60}: {why}")
        for pattern in own._patterns():
            try:
                re.compile(pattern)
            except re.error as error:
                raise own.refuse(f"the pattern {pattern!r:.60} is none: {error}") from error
        return own

    def targets(self, module: str) -> bool:
        """Whether the adapter adapts a module of its base, by PEFT's rules."""
        if self._names("exclude_modules", module):
            return False
        asked = self.values.get("target_modules")
        if isinstance(asked, str):
            return asked == "all-linear" or self._names("target_modules", module)
        return self._names("target_modules", module) and self._is_of_its_layers(module)

    def rank(self, module: str) -> int:
        """The rank of a module's adapter."""
        rank = self._number("r", "rank_pattern", module, 8)
        if not rank.is_integer():
            raise self.refuse(f"r of {module} is {rank}; a rank is a whole number")
        return int(rank)

    def scale(self, module: str) -> float:
        """The factor of the product of its two matrices."""
        rank, alpha = self.rank(module), self._number("lora_alpha", "alpha_pattern", module, 8)
        return alpha / (math.sqrt(rank) if self.values.get("use_rslora") else rank)

    def refuse(self, reason: str) -> CheckpointError:
        """The error to raise for this file."""
        return CheckpointError(f"{self.file}: {reason}")

    def _names(self, key: str, module: str) -> bool:
        asked = self.values.get(key)
        if isinstance(asked, str):
            return re.fullmatch(asked, module) is not None
        listed = _listed(asked)
        return module in listed or any(module.endswith(f".{name}") for name in listed)

    def _is_of_its_layers(self, module: str) -> bool:
        asked = self.values.get("layers_to_transform")
        if asked is None or asked == []:
            return True
        patterns = _listed(self.values.get("layers_pattern")) or [r"[^.]*"]
        found = (re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", module) for pattern in patterns)
        number = next((int(match.group(1)) for match in found if match), None)
        return number in (asked if isinstance(asked, list) else [asked])

    def _number(self, key: str, patterns: str, module: str, default: int) -> float:
        value: Any = self.values.get(key, default)
        for pattern, own in (self.values.get(patterns) or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                value = own
                break
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise self.refuse(f"{key} of {module} is {value!r}; it must be a number above 0")
        return float(value)

    def _patterns(self) -> list[str]:
        written = [self.values.get(key) for key in ("target_modules", "exclude_modules")]
        own = [each for each in written if isinstance(each, str)]
        own += _listed(self.values.get("layers_pattern"))
        for key in ("rank_pattern", "alpha_pattern"):
            found = self.values.get(key) or {}
            if not isinstance(found, Mapping):
                raise self.refuse(f"{key} is {found!r:.60}; it maps patterns to numbers")
            own += found
        return own


def _listed(value: Any) -> Sequence[str]:
    if isinstance(value, str):
        return [value]
    return [str(each) for each in value] if isinstance(value, list) else []
