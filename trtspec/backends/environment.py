"""Environment: what compiled code depends on in the machine and in what is installed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from trtspec.backends.device import compute_capability, gpu_name
from trtspec.config.strict import from_dict
from trtspec.ops import OPS_VERSION


@dataclass(frozen=True)
class Environment:
    """Facts of the place where an engine was built. compute_capability and gpu are None for an
    engine that runs on the CPU. own: facts for its backend alone, by name."""

    torch: str
    machine: str
    vector_isa: str
    ops: int
    compute_capability: str | None = None
    gpu: str | None = None
    own: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls, device: str = "cpu") -> Environment:
        """The facts of this machine, for an engine on a ``device`` without a `device_problem`."""
        on_gpu = device == "cuda"
        return cls(
            torch=torch.__version__.split("+")[0],
            machine=platform.machine(),
            vector_isa=torch.backends.cpu.get_cpu_capability(),
            ops=OPS_VERSION,
            compute_capability=compute_capability() if on_gpu else None,
            gpu=gpu_name() if on_gpu else None,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that must match unless the backend says otherwise: all but the name of the
        GPU."""
        return {key: value for key, value in self.to_dict().items() if key != "gpu"}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, the backend's beside the others. Facts that the device does not
        have are left out."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return {key: value for key, value in shared.items() if value is not None} | dict(self.own)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Environment:
        """The inverse of `to_dict`; ConfigError for other content."""
        shared = {key: value for key, value in data.items() if key in _SHARED}
        own = {key: value for key, value in data.items() if key not in _SHARED}
        return from_dict(cls, {**shared, "own": own})


_SHARED = [entry.name for entry in fields(Environment) if entry.name != "own"]
