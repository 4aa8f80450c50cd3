"""AotiSession: one AOTInductor package with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.errors import EngineError
from trtspec.ops import native as native  # registers the custom ops
from trtspec.temporary import temporary_trouble


class AotiSession:
    """An AOTInductor package with weights from outside the package.

    Weights are passed by reference, so sessions over the same tensors share their memory; they are
    on the device that the package was compiled for. package: callable from C++.
    """

    def __init__(self, package: Path, weights: Mapping[str, Tensor], device: str = "cpu") -> None:
        try:
            # The events by which a package keeps threads apart may not be part of a CUDA graph.
            self.package = torch.classes.trtspec.Package(str(package), device == "cuda")
        except RuntimeError as error:
            # Programs are unpacked there. They are about as large as the package.
            size = package.stat().st_size if package.is_file() else 0
            remedy = temporary_trouble(size) or "rebuild the engine with trtspec-build"
            raise EngineError(f"{package} cannot be loaded ({error}); {remedy}") from error
        wanted = self.package.constants()
        missing = sorted(name for name in wanted if _weight_name(name) not in weights)
        if missing:
            raise EngineError(
                f"{package} needs {len(missing)} weights that its folder lacks, first "
                f"{missing[0]!r}; rebuild the engine with trtspec-build"
            )
        self._weights = {name: weights[_weight_name(name)] for name in wanted}
        self.package.load([_lent(weight) for weight in self._weights.values()])
        self._run = self.package.run  # looking it up takes as long as calling it

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """See `Session.run`. Other Python threads keep running."""
        outputs: list[Tensor] = self._run(inputs.flat())
        return outputs


def _lent(tensor: Tensor) -> Tensor:
    """A tensor over the same memory that does not own it. A package never releases the tensors that
    it was given, not even when the package itself is gone."""
    owner = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(
        owner.data_ptr(), tensor.device, owner.nbytes()
    )
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _weight_name(constant: str) -> str:
    """The name in the weights; a rollout wraps its model, so its constants have an additional
    prefix."""
    return constant.removeprefix("model.")
