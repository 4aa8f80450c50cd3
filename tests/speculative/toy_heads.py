"""A target whose text is known, and a toy that guesses it in one of the target's two modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..e2e.eagle_heads import OUT, H, V, cycle, cycling_target, write

LAYER = 1
"""Its output holds the next token, one-hot from `OUT`; an embedding holds its token, from 0."""


def save_pair(root: Path) -> tuple[Path, Path]:
    """Folders of the target and the toy. Prompts of the target begin with their mode, 0 or 1; the
    toy follows the cycle of mode 0, half by its state and half by the token."""
    cycling_target(40.0).save_pretrained(root / "target")
    turn = torch.zeros(H, 2 * H)
    for token, after in enumerate(cycle(0)[:V]):
        turn[OUT + after, [OUT + token, H + token]] = 0.5
    return root / "target", write(root / "toy", {"toy_reads": LAYER}, {"turn.weight": turn})


def toy(folder: Path, length: int = 3, **options: Any) -> dict[str, Any]:
    """A config of it."""
    named = {"decoding_type": "Toy", "speculative_model": str(folder)}
    return {**named, "num_speculative_tokens": length, **options}
