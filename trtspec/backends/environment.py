"""Environment: what compiled code depends on in the machine and the installed software."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from trtspec.backends.device import compute_capability, gpu_name
from trtspec.config.strict import from_dict
from trtspec.ops import OPS_VERSION

_EXTENSION = re.compile(
    r"(avx|sse|amx_|fma|bmi|sha_|v?aes$|gfni|v?pclmul).*|ssse3|pni|popcnt|abm|f16c|movbe|adx|xop|tbm"
)
"""The Linux kernel's names for x86 extensions that a compiler uses, among everything it reports
about a processor."""


def cpu_instructions(root: Path = Path("/")) -> str | None:
    """The processor's instruction set extensions, by the kernel's names, sorted. Code compiled for
    this processor may use all of them. None: unknown. ``root``: the folder that contains ``proc``.
    """
    try:
        lines = (root / "proc" / "cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, words = line.partition(":")
        if name.strip() == "flags":
            return " ".join(sorted(filter(_EXTENSION.fullmatch, words.split())))
        if name.strip() == "Features":  # ARM's are all of that kind
            return " ".join(sorted(words.split()))
    return None


@dataclass(frozen=True)
class Environment:
    """Facts about where an engine was built. compute_capability and gpu are None for an engine that
    runs on the CPU. instructions: see `cpu_instructions`. own: facts that concern only its backend,
    by name."""

    torch: str
    machine: str
    vector_isa: str
    ops: int
    compute_capability: str | None = None
    gpu: str | None = None
    instructions: str | None = None
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
            instructions=cpu_instructions(),
        )

    def lacks(self, built: Environment) -> list[str]:
        """Instructions that code ``built`` there may use and that are missing here, as far as both
        are known."""
        if built.instructions is None or self.instructions is None:
            return []
        here = self.instructions.split()
        return [name for name in built.instructions.split() if name not in here]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that must match unless the backend says otherwise: all but the GPU's name."""
        return {key: value for key, value in self.to_dict().items() if key != "gpu"}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, including the backend's own. Facts that do not apply to the device are
        left out."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return {key: value for key, value in shared.items() if value is not None} | dict(self.own)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Environment:
        """The inverse of `to_dict`; ConfigError for other content."""
        shared = {key: value for key, value in data.items() if key in _SHARED}
        own = {key: value for key, value in data.items() if key not in _SHARED}
        return from_dict(cls, {**shared, "own": own})


_SHARED = [entry.name for entry in fields(Environment) if entry.name != "own"]
