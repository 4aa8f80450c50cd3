"""A checkpoint's tensors, with each quantised weight as one tensor."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.quantised.gguf_blocks import unblocked
from checkpoint_converters.quantised.registry import read_scheme
from trtspec.config.storage import NetworkStorage


def is_quantised(hf: HfConfig) -> bool:
    """Whether a folder's config says that weights are quantised; for a GGUF file, whether its
    tensors are.

    Raises:
        CheckpointError: they use an unsupported scheme.
    """
    return hf.is_gguf or read_scheme(hf) is not None


def fold(hf: HfConfig, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors of the folder or GGUF file that ``hf`` describes. A `QuantisedHeader`, which
    reads as floats, replaces all tensors of a quantised layer.

    Raises:
        CheckpointError: an unsupported scheme, or a layer whose tensors do not fit it.
    """
    if hf.is_gguf:
        return unblocked(headers)
    scheme = read_scheme(hf)
    return dict(headers) if scheme is None else scheme.fold(headers)


def storage_of(tensors: Mapping[str, TensorHeader]) -> NetworkStorage | None:
    """How the weights among tensors, by internal names, are quantised; None if none is."""
    matrices = {name: each for name, each in tensors.items() if len(each.shape) == 2}
    ending = ".weight"
    return NetworkStorage.of(
        {
            name.removesuffix(ending): each.storage
            for name, each in matrices.items()
            if name.endswith(ending)
        }
    )
