"""Sessions: run an engine, or a single graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.backends.inputs import EngineInputs
from trtspec.models.signature import Signature
from trtspec.ops import native as native  # registers the custom ops


class Session(Protocol):
    """Runs one engine."""

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """Run once; caches among the inputs are written in place. On the host the outputs are new
        tensors; on a device the next call may overwrite them."""
        ...


class GraphSession(Protocol):
    """Runs one lowered graph (see `trtspec.backends.slots`), which has its own inputs."""

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run on the graph's inputs in order; caches among them are written in place. Returns the
        other outputs, as `Session.run` does."""
        ...


class ModuleSession:
    """Runs a torch module that has an engine's signature: an uncompiled model (for tests and
    debugging, only on request), or a module over lowered graphs."""

    def __init__(self, module: nn.Module, signature: Signature, device: str = "cpu") -> None:
        self._module = module.to(device).eval()
        self._signature = signature

    # inference_mode would not do: its tensors forbid that the sampler changes logits in place.
    @torch.no_grad()
    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """See `Session.run`."""
        return list(self._module(*self._signature.unflatten(inputs.flat())))
