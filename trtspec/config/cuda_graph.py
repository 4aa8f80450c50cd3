"""CudaGraphConfig: which batches run as CUDA graphs, and the sizes they are padded to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.config.strict import from_dict, strict_config
from trtspec.errors import ConfigError


@strict_config(
    aliases={"cudagraph_capture_sizes": "batch_sizes", "cuda_graph_sizes": "batch_sizes"},
    none_means_default=True,
)
@dataclass(frozen=True)
class CudaGraphConfig:
    """Steps that only generate run as graphs of fixed sizes; ConfigError names a bad value.

    batch_sizes: numbers of requests for which graphs are captured, each for several numbers of
    rows; None: 1, 2, 4, 8, ... and max_batch_size. Sizes above the runtime's max_batch_size are
    left out. max_batch_size: the largest size if ``batch_sizes`` is None; None: the runtime's.
    enable_padding: steps smaller than a graph are padded to it; otherwise only steps of exactly
    that size run as graphs (none on the tensorrt backend).
    """

    batch_sizes: tuple[int, ...] | None = None
    max_batch_size: int | None = None
    enable_padding: bool = True

    def __post_init__(self) -> None:
        if self.batch_sizes is not None:
            wrong = [size for size in self.batch_sizes if size < 1]
            if wrong or not self.batch_sizes:
                raise ConfigError(
                    f"cuda_graph_config's batch_sizes={list(self.batch_sizes)} must be one or more "
                    "numbers of at least 1; to run without graphs give cuda_graph_config=False"
                )
            if self.max_batch_size is not None:
                raise ConfigError(
                    "cuda_graph_config takes batch_sizes or max_batch_size, not both: "
                    f"got {list(self.batch_sizes)} and {self.max_batch_size}"
                )
        if self.max_batch_size is not None and self.max_batch_size < 1:
            raise ConfigError(
                f"cuda_graph_config's max_batch_size={self.max_batch_size} must be at least 1"
            )

    def sizes(self, max_batch_size: int) -> tuple[int, ...]:
        """Numbers of requests, ascending, for a runtime with this max_batch_size."""
        if self.batch_sizes is not None:
            return tuple(sorted({size for size in self.batch_sizes if size <= max_batch_size}))
        largest = min(self.max_batch_size or max_batch_size, max_batch_size)
        powers = [1 << i for i in range(largest.bit_length()) if 1 << i < largest]
        return (*powers, largest)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CudaGraphConfig:
        return from_dict(cls, data)
