"""Staging: many small tensors to a device, or back, in one copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ALIGNMENT = 256
"""Bytes; compiled kernels may rely on 16, and torch's own allocator gives 512."""
_ELEMENT = 8
"""Bytes of the largest elements. A view of any dtype may only begin at a multiple of it."""


@dataclass
class _HostMemory:
    """Bytes on the host, pinned for CUDA, and the last copy that reads them."""

    memory: Tensor
    copied: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Wait until the memory may be written again."""
        if self.copied is not None:
            self.copied.synchronize()


@dataclass(frozen=True)
class _Buffer:
    """Memory for tensors of certain shapes on host and device, and views of both as these
    tensors."""

    host: _HostMemory
    device: Tensor
    host_views: list[Tensor]
    device_views: list[Tensor]


class Staging:
    """Copies lists of host tensors to a device, each list in one piece and without waiting.

    On a CPU nothing is copied, unless ``always`` (for tests): ``copies`` says so.
    """

    def __init__(self, device: torch.device, always: bool = False) -> None:
        self._device = device
        self.copies = always or device.type != "cpu"
        self._on_cuda = device.type == "cuda"
        self._stable: dict[tuple[object, ...], _Buffer] = {}
        self._scratch = self._new_host(0)  # for calls that are not stable

    def to_device(self, tensors: Sequence[Tensor], stable: bool = False) -> list[Tensor]:
        """The tensors on the device.

        ``stable``: tensors of these shapes recur. They then have the same addresses every time, and
        a call overwrites the results of the last one with these shapes.
        """
        if not self.copies:
            return list(tensors)
        buffer = (
            self._stable_buffer(tensors) if stable else self._new_buffer(tensors, self._scratch)
        )
        buffer.host.wait()
        for view, tensor in zip(buffer.host_views, tensors, strict=True):
            view.copy_(tensor)
        buffer.device.copy_(buffer.host.memory[: len(buffer.device)], non_blocking=True)
        if self._on_cuda:
            buffer.host.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffer.host.copied.record()
        return list(buffer.device_views)

    def _stable_buffer(self, tensors: Sequence[Tensor]) -> _Buffer:
        key = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if key not in self._stable:
            self._stable[key] = self._new_buffer(tensors, self._new_host(_size(tensors)))
        return self._stable[key]

    def _new_buffer(self, tensors: Sequence[Tensor], host: _HostMemory) -> _Buffer:
        size = _size(tensors)
        if len(host.memory) < size:
            host.wait()
            host.memory = self._new_host(size).memory
        device = torch.empty(size, dtype=torch.uint8, device=self._device)
        return _Buffer(host, device, _views(host.memory, tensors), _views(device, tensors))

    def _new_host(self, size: int) -> _HostMemory:
        return _HostMemory(torch.empty(size, dtype=torch.uint8, pin_memory=self._on_cuda))


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the host, in one copy that waits for the device. On a CPU they are returned as
    they are."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return list(tensors)
    return split(join(tensors).cpu(), tensors)


def join(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors one after the other, uint8; each begins at a multiple of 8, where a
    view of any dtype may begin."""
    return torch.cat([_padded(t.contiguous().view(-1).view(torch.uint8)) for t in tensors])


def split(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The inverse of `join`; ``like`` has the shapes and dtypes."""
    sizes = [tensor.numel() * tensor.itemsize for tensor in like]
    parts = torch.split(joined, [size + _gap(size) for size in sizes])
    return [
        part[:size].view(tensor.dtype).view(tensor.shape)
        for part, size, tensor in zip(parts, sizes, like, strict=True)
    ]


def _padded(octets: Tensor) -> Tensor:
    gap = _gap(len(octets))
    return torch.nn.functional.pad(octets, (0, gap)) if gap else octets


def _gap(size: int) -> int:
    return -size % _ELEMENT


def _bytes(tensor: Tensor) -> int:
    return math.ceil(tensor.numel() * tensor.itemsize / _ALIGNMENT) * _ALIGNMENT


def _size(tensors: Sequence[Tensor]) -> int:
    return sum(_bytes(tensor) for tensor in tensors)


def _views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """``memory [bytes] u8`` as tensors with the shapes and dtypes of ``like``, each aligned."""
    views, begin = [], 0
    for tensor in like:
        part = memory[begin : begin + tensor.numel() * tensor.itemsize]
        views.append(part.view(tensor.dtype).view(tensor.shape))
        begin += _bytes(tensor)
    return views
