"""llama.cpp's next-token probabilities over ids, position by position."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trtspec.bench.peers.process import WORKERS, PeerError
from trtspec.bench.runs.divergence import WINDOW

_LAST_LINES = 5


def peer_log_probabilities(
    python: str, model: Path, ids: Sequence[int], vocab_size: int
) -> list[Tensor]:
    """Log probabilities ``[T_i, V] f32`` by windows, from a GGUF file. ``python``: an interpreter
    with xllamacpp.

    Raises:
        PeerError: it cannot be run, or fails, with its own message.
    """
    with tempfile.TemporaryDirectory() as folder:
        told, made = Path(folder) / "ids", Path(folder) / "logits"
        told.write_text(" ".join(map(str, ids)))
        script = WORKERS / "llama_cpp_logits.py"
        command = [python, str(script), str(model), str(told), str(WINDOW), str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise PeerError(f"llama.cpp: {python} cannot be run: {error}") from error
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines()[-_LAST_LINES:]
            raise PeerError("llama.cpp: " + "\n".join(said)) from error
        flat = torch.from_file(str(made), size=made.stat().st_size // 4, dtype=torch.float32)
        logits = torch.split(flat.view(len(ids), -1)[:, :vocab_size], WINDOW)
        return [torch.log_softmax(each.double(), -1).float() for each in logits]
