"""What a model family adds to the common reading: its flags as fields, and its tensor names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.names import NameMap


@dataclass(frozen=True)
class Family:
    """One supported architecture.

    ``architecture`` and ``model_type`` as config.json spells them; ``read_fields`` gives the fields
    of ModelConfig but for ``architecture`` and ``dtype``; ``names`` maps its tensors.
    """

    architecture: str
    model_type: str
    read_fields: Callable[[HfConfig], dict[str, Any]]
    names: NameMap

    @property
    def base_architecture(self) -> str:
        """What config.json says where the decoder was saved alone: ``LlamaModel``."""
        return self.architecture.replace("ForCausalLM", "Model")


def sliding_layers(hf: HfConfig, num_layers: Any) -> dict[str, Any]:
    """Qwen's rule: ``sliding_window`` counts only with ``use_sliding_window``, and then for the
    layers that ``layer_types`` marks or, without that list, from ``max_window_layers`` on."""
    window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
    kinds = hf.get("layer_types")
    if kinds is None:
        if window is None:
            return {}
        first = hf.get("max_window_layers", 28)
        marks = tuple(layer >= first for layer in range(num_layers))
    else:
        known = ("full_attention", "sliding_attention")
        other = sorted({str(kind) for kind in kinds} - set(known))
        if other:
            raise hf.refuse(
                f"layer_types {', '.join(other)} are not supported; supported: {', '.join(known)}"
            )
        marks = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(marks):
        return {}
    return {"sliding_window": window, "sliding_layers": marks}
