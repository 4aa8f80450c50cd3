"""Staging: many small tensors to a device, or back, in one copy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

_ALIGNMENT = 256
"""Bytes; compiled kernels may rely on 16, and torch's own allocator gives 512."""
_ELEMENT = 8
"""Bytes of the largest elements. A view of any dtype may only begin at a multiple of it."""
_UNDER_WAY = 4
"""Copies to a device at a time: more than the steps in flight make; each holds memory on the host.
"""
_Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class _HostMemory:
    """Bytes on the host, pinned for CUDA, which one copy at a time reads."""

    def __init__(self, on_cuda: bool) -> None:
        self._on_cuda = on_cuda
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._views: dict[_Shapes, list[Tensor]] = {}
        self._copied: torch.cuda.Event | None = None

    def send(self, tensors: Sequence[Tensor], to: _DeviceMemory, stable: bool) -> None:
        """Copy the tensors to a device, once the last copy no longer reads the memory."""
        if self._copied is not None:
            self._copied.synchronize()
        size = len(to.memory)
        if len(self._memory) < size:
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._on_cuda)
            self._views.clear()
        views = self._views.get(to.shapes) or _views(self._memory, tensors)
        if stable:
            self._views[to.shapes] = views
        for view, tensor in zip(views, tensors, strict=True):
            view.copy_(tensor)
        to.memory.copy_(self._memory[:size], non_blocking=True)
        if self._on_cuda:
            self._copied = self._copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()


class _DeviceMemory:
    """Memory for tensors of certain shapes on a device, and its views as these tensors."""

    def __init__(self, tensors: Sequence[Tensor], shapes: _Shapes, device: torch.device) -> None:
        size = sum(map(_bytes, tensors))
        self.shapes = shapes
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.views = _views(self.memory, tensors)


class Staging:
    """Copies lists of host tensors to a device, each list in one piece and without waiting, unless
    as many copies are under way as it has memory on the host for.

    On a CPU nothing is copied, unless ``always`` (for tests): ``copies`` says so.
    """

    def __init__(self, device: torch.device, always: bool = False) -> None:
        self._device = device
        self.copies = always or device.type != "cpu"
        self._stable: dict[_Shapes, _DeviceMemory] = {}
        self._ring = deque(_HostMemory(device.type == "cuda") for _ in range(_UNDER_WAY))

    def to_device(self, tensors: Sequence[Tensor], stable: bool = False) -> list[Tensor]:
        """The tensors on the device.

        ``stable``: tensors of these shapes recur. They then have the same addresses every time, and
        a call overwrites the results of the last one with these shapes.
        """
        if not self.copies:
            return list(tensors)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        to = self._stable.get(shapes) if stable else None
        to = to or _DeviceMemory(tensors, shapes, self._device)
        if stable:
            self._stable[shapes] = to
        self._ring[0].send(tensors, to, stable)
        self._ring.rotate(-1)
        return list(to.views)


class HostRead:
    """A copy of tensors to the host, all in one piece, behind the work that their stream has now.

    What is done with the tensors afterwards does not change it. On a CPU nothing is copied.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._ended: torch.cuda.Event | None = None
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return
        joined = join(tensors)
        # Torch keeps pinned memory that is no longer used for the next ones.
        memory = torch.empty(len(joined), dtype=torch.uint8, pin_memory=True)
        memory.copy_(joined, non_blocking=True)
        self._tensors = split(memory, tensors)
        self._ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._ended.record()

    def wait(self) -> list[Tensor]:
        """The tensors on the host; waits for the device."""
        if self._ended is not None:
            self._ended.synchronize()
        return list(self._tensors)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the host, in one copy that waits for the device. On a CPU they are returned as
    they are."""
    return HostRead(tensors).wait()


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


def _views(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """``memory [bytes] u8`` as tensors with the shapes and dtypes of ``like``, each aligned."""
    views, begin = [], 0
    for tensor in like:
        part = memory[begin : begin + tensor.numel() * tensor.itemsize]
        views.append(part.view(tensor.dtype).view(tensor.shape))
        begin += _bytes(tensor)
    return views
