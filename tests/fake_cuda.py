"""A CUDA device faked on the CPU: tensors that say they lie on it, and refuse what such tensors
refuse.

`played_cuda` gives torch a device ``cuda:0`` whose tensors are CPU tensors in a wrapper. What they
are computed by is the CPU's; but they have no ``numpy()``, and an operation over one of them and a
tensor on the host fails, where it would fail on CUDA. Graphs refuse what none can hold,
and are replayed on the memory that they were captured with. Copies that nobody waits for (pinned
memory, ``non_blocking``) are under way until the host has waited for something behind them: until
then, what one reads on the host must not change, and what one writes there has other values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trtspec.ops.acceptance import accept_trees

from .fake_stream import Event, Stream, waits, work

DEVICE = torch.device("cuda:0")
_aten = torch.ops.aten
_INDEXING = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)
"""Those whose index tensors may lie on the host."""
_COPIES = (_aten.copy_.default, _aten._to_copy.default)


_pinned: list[torch.UntypedStorage] = []


def _mm(a: Tensor, b: Tensor, out_dtype: torch.dtype) -> Tensor:
    return (a.float() @ b.float()).to(out_dtype)


def _accept(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    """CUDA's takes requests without rows, and rows behind the last one; as wide as all rows."""
    return accept_trees(*arguments, width=len(arguments[0]))


_on_cpu: dict[Any, Any] = {
    _aten.mm.dtype: _mm,
    torch.ops.trtspec.accept.default: _accept,
}
"""What has no kernel for CPUs, or one that takes less."""


class DeviceTensor(torch.Tensor):
    """``held``: the CPU's tensor that has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        waits.append("tolist")
        return self.held.tolist()

    def numpy(self, **options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    def __setitem__(self, index: Any, value: Any) -> None:  # type: ignore[override]
        """Python's own would make a tensor of a number on the device, by a kernel for it."""
        if isinstance(value, Tensor) and value.dim() and not isinstance(value, DeviceTensor):
            raise RuntimeError(f"a tensor on the host becomes part of one on {DEVICE}")
        held = pytree.tree_map(_held, (self, index, value))
        _set(*held)
        if _captured:
            _captured[-1].calls.append((_set, held, {}, None))

    def __repr__(self) -> str:
        return f"on {DEVICE}: {self.held!r}"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    asked = kwargs.get("device")
    stays = torch.device(asked).type == "cuda" if asked is not None else True
    if func not in _COPIES:
        _check_devices(func, args, tensors)
    if _captured:
        _check_capture(func, tensors, func is _aten._to_copy.default and not stays)
    if func is _aten.copy_.default and _is_under_way(args, kwargs):
        work.copy(args[0], args[1])
        return args[0]
    comes_back = func is _aten.copy_.default and not isinstance(tensors[0], DeviceTensor)
    reads = func is _aten._local_scalar_dense.default or (func in _COPIES and not stays)
    if comes_back or (reads and any(isinstance(t, DeviceTensor) for t in tensors)):
        waits.append(str(func))
        work.wait(work.given)
    wrappers = {id(t.held): t for t in tensors if isinstance(t, DeviceTensor)}
    args, kwargs = pytree.tree_map(_held, (args, kwargs))
    if asked is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    if func is _aten._to_copy.default and not stays:
        return func(*args, **kwargs)
    func = _on_cpu.get(func, func)
    made = func(*args, **kwargs)
    if _captured:
        _captured[-1].calls.append((func, args, kwargs, made))
    if not stays or comes_back:
        return made

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        known = wrappers.get(id(value))
        return DeviceTensor(value) if known is None else known

    return pytree.tree_map(placed, made)


def _is_under_way(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a copy is between pinned memory and the device, and the host does not wait."""
    to, source, *rest = args
    host = source if isinstance(to, DeviceTensor) else to
    is_asked = kwargs.get("non_blocking", bool(rest and rest[0]))
    storage = None if isinstance(host, DeviceTensor) else host.untyped_storage()
    return is_asked and any(storage is not None and storage._cdata == p._cdata for p in _pinned)


def _set(tensor: Tensor, index: Any, value: Any) -> None:
    tensor[index] = value


def _held(value: Any) -> Any:
    return value.held if isinstance(value, DeviceTensor) else value


def _check_devices(func: Any, args: Any, tensors: Sequence[Tensor]) -> None:
    """Single numbers may lie on the host, and so may indices."""
    if func in _INDEXING:
        tensors = [t for i, value in enumerate(args) if i != 1 for t in pytree.tree_leaves(value)]
    hosts = [
        t for t in tensors if isinstance(t, Tensor) and not isinstance(t, DeviceTensor) and t.dim()
    ]
    if hosts and len(hosts) < len([t for t in tensors if isinstance(t, Tensor)]):
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found {DEVICE} and cpu"
        )


# -- the device itself --------------------------------------------------------------------------


@cache
def _register() -> torch.library.Library:
    """Memory on the device, for all threads of this process; nothing else has a kernel for it."""
    library = torch.library.Library("aten", "IMPL", "CUDA")

    def empty(size: Sequence[int], **options: Any) -> DeviceTensor:
        return DeviceTensor(torch.empty(size, dtype=options.get("dtype")))

    def empty_strided(size: Sequence[int], stride: Sequence[int], **options: Any) -> DeviceTensor:
        return DeviceTensor(torch.empty_strided(size, stride, dtype=options.get("dtype")))

    library.impl("empty.memory_format", empty)
    library.impl("empty_strided", empty_strided)
    return library


@contextmanager
def _guarded() -> Iterator[None]:
    """What chooses the current device of a kind is missing for CUDA in a torch without it; that of
    CPUs, which does nothing, stands in."""
    libc10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * 2).in_dll(libc10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[1] = guards[0]  # the numbers of c10::DeviceType
    try:
        yield
    finally:
        guards[1] = None


class _Graph:
    """What was recorded while it was captured, on the memory it was recorded with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            again = func(*args, **kwargs)
            pairs = zip(pytree.tree_leaves(made), pytree.tree_leaves(again), strict=True)
            for own, new in pairs:
                if isinstance(own, Tensor) and own.data_ptr() != new.data_ptr():
                    own.copy_(new)


_captured: list[_Graph] = []
"""The graph that is being captured, if any."""


@contextmanager
def _capture(graph: _Graph, **options: Any) -> Iterator[None]:
    _captured.append(graph)
    try:
        yield
    finally:
        _captured.pop()


def _check_capture(func: Any, tensors: Sequence[Tensor], to_host: bool) -> None:
    """No graph may hold what waits for the device, or reads memory of the host once more."""
    on_device = [isinstance(tensor, DeviceTensor) for tensor in tensors]
    waits = to_host or func is _aten._local_scalar_dense.default
    if waits or (func is _aten.copy_.default and not all(on_device)):
        raise RuntimeError(f"{func}: operation not permitted when stream is capturing")


def _numbered(value: Any) -> Any:
    is_plain = isinstance(value, str | torch.device) and str(value) == "cuda"
    return DEVICE if is_plain else value


def _launched(module: Any) -> Callable[..., Tensor]:
    """`tree_mask` on CUDA, which launches its kernel by address."""

    def launch(arguments: Sequence[Tensor], width: int, length: int, *rest: Any) -> Tensor:
        held = [tensor.held for tensor in arguments if isinstance(tensor, DeviceTensor)]
        assert len(held) == len(arguments), "a kernel reads the device's memory alone"
        names = ("sliding_window", "dtype")
        options = dict(zip(names, rest, strict=True))
        made: Tensor = module.tree_mask(*held, width=width, length=length, **options)
        return made.to(DEVICE)

    return launch


def can_fake() -> bool:
    """Not where torch has kernels for CUDA of its own."""
    return torch.version.cuda is None


@contextmanager
def played_cuda(memory: int = 8 << 30) -> Iterator[None]:
    """Torch finds a CUDA device of so many bytes, and trtspec all ops for it."""
    import trtspec.engine.folder as folder
    import trtspec.ops.tree_mask as tree_mask
    from trtspec.ops import native

    _register()
    plain_empty, read = torch.empty, folder.safe_open

    def empty(*args: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        made = plain_empty(*args, **options)
        if pin_memory:
            _pinned.append(made.untyped_storage())  # while it is held, nothing else has its address
        return made

    @contextmanager
    def opened(path: Any, framework: str, device: str) -> Iterator[Any]:
        with read(path, framework=framework, device="cpu") as file:
            get = file.get_tensor
            yield SimpleNamespace(keys=file.keys, get_tensor=lambda name: get(name).to(device))

    cuda = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "stream": lambda stream: nullcontext(),
        "CUDAGraph": _Graph,
        "graph": _capture,
        "graph_pool_handle": lambda: "pool",
        "synchronize": lambda device=None: work.wait(work.given),
        "mem_get_info": lambda device=None: (memory, memory),
        "get_device_name": lambda device=None: "a fake GPU",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=memory),
    }
    plain_to, plain_tensor = torch.Tensor.to, torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        if device is not None and torch.device(device).type == "cpu":
            return plain_tensor(data, device=device, **options)  # where meta is the default, too
        made = plain_tensor(data, **options)
        return made if device is None else made.to(device)

    def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        """The current device of the kind is the one there is."""
        args, options = pytree.tree_map(_numbered, (args, options))
        return plain_to(self, *args, **options)

    with _guarded(), pytest.MonkeyPatch.context() as patch:
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(torch, "empty", empty)
        patch.setattr(torch, "tensor", tensor)
        patch.setattr(torch.Tensor, "to", to)
        patch.setattr(torch.Tensor, "cuda", lambda self, *_: self.to(DEVICE))
        patch.setattr(native, "HAS_CUDA_OPS", True)
        patch.setattr(tree_mask, "_launch", _launched(tree_mask))
        patch.setattr(folder, "safe_open", opened)
        work.__init__()  # type: ignore[misc]
        _pinned.clear()
        yield
        work.wait(work.given)
