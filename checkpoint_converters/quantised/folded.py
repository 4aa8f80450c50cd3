"""A checkpoint's tensors, each quantised weight as one of them."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.quantised.gguf_blocks import unblocked
from checkpoint_converters.quantised.numbers import QuantisedTensor
from checkpoint_converters.quantised.registry import read_scheme
from trtspec.config.storage import WeightStorage


def is_quantised(hf: HfConfig) -> bool:
    """Whether a folder says that weights are quantised; of a GGUF file its tensors do.

    Raises:
        CheckpointError: by a scheme that is not read.
    """
    return hf.is_gguf or read_scheme(hf) is not None


def fold(hf: HfConfig, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors of the folder or GGUF file that ``hf`` describes, with a `QuantisedTensor`, which
    reads as floats, in place of all that a quantised layer has.

    Raises:
        CheckpointError: a scheme that is not read, or a layer whose tensors do not fit it.
    """
    if hf.is_gguf:
        return unblocked(headers)
    scheme = read_scheme(hf)
    return dict(headers) if scheme is None else scheme.fold(headers)


def storage_of(headers: Mapping[str, TensorHeader]) -> WeightStorage | None:
    """That of all quantised weights, where they have one that is kept; else None."""
    found = {h.storage for h in headers.values() if isinstance(h, QuantisedTensor)}
    return found.pop() if found == {WeightStorage(8)} else None
