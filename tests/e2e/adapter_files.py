"""Random adapters of tiny models: as PEFT's files, and merged into their base."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class TinyAdapter:
    """A random adapter of linear layers whose names end with one of ``targets``."""

    seed: int
    rank: int
    targets: tuple[str, ...]
    alpha: float = 6.0
    rslora: bool = False

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def save(self, model: PreTrainedModel, folder: Path) -> Path:
        """Write it as PEFT does."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
            "target_modules": list(self.targets),
            "bias": "none",
            "modules_to_save": None,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        tensors = {}
        for name, _, a, b in self._parts(model):
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    def merged(self, model: PreTrainedModel) -> PreTrainedModel:
        """A copy of the model with ``W + scale * B A`` in place of each W, as PEFT merges."""
        made = copy.deepcopy(model)
        with torch.no_grad():
            for _, linear, a, b in self._parts(made):
                linear.weight += self.scale * (b @ a)
        return made

    def _parts(self, model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear, Tensor, Tensor]]:
        noise = torch.Generator().manual_seed(self.seed)
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name.endswith(self.targets):
                n, k = module.weight.shape
                a = torch.randn(self.rank, k, generator=noise) / k**0.5
                b = torch.randn(n, self.rank, generator=noise) / self.rank**0.5
                yield name, module, a, b
