"""Capture: which hidden states of the target a draft reads, in one convention.

Inside trtspec, layer i means the *output* of decoder layer i (0-based), and -1 the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capture:
    """``layers`` in the order of their concatenation, ``source`` (where they were read and by which
    convention) and ``notes`` (lines about conversions)."""

    layers: tuple[int, ...]
    source: str
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """``outputs of layers 1, 3, 4 (eagle_config: outputs)``"""
        outputs = [str(layer) for layer in self.layers if layer >= 0]
        text = f"outputs of layer{'s' if len(outputs) > 1 else ''} {', '.join(outputs)}"
        if -1 in self.layers:
            text = f"the embeddings and {text}" if outputs else "the embeddings"
        return f"{text} ({self.source})"
