"""The CUDA kernels from Python, on raw device pointers and a stream, without torch's ops: what a
TensorRT session needs between its engines. The sources of ``plugins/kernels`` are compiled for the
running device when they are first used (see `trtspec.ops.cuda_driver`).

The contracts are those of ``plugins/kernels.hpp``. What the launchers there decide (grids, shared
memory, the workspace) is decided here again; every number that has to agree is compared by the
compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.errors import BuildError, ConfigError
from trtspec.ops.cuda_driver import Compiled, Device, Grid, compile_source
from trtspec.ops.cuda_params import (
    CACHES_OF_LAUNCH,
    AcceptParams,
    Caches,
    MaskKind,
    MaskValues8,
    MaskValues16,
    MaskValues32,
    Moves,
    SamplingRows,
    TreeMaskParams,
    layout_checks,
)

_PACKAGE = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = (_PACKAGE / "lib" / "cuda", _PACKAGE.parent)
"""Where the sources may lie: in an installed package, or in the repository."""

MAX_COMPACT_PAIRS = 6144
"""The most rows that one kv_compact moves."""

_WARP = 32
_ACCEPT_WARPS = 4
_MASK_THREADS = 256
_MOVE_THREADS = 256
_MOVE_SHARED_BYTES = MAX_COMPACT_PAIRS * 16
_MOVE_WIDEST_SLICE = 512
_CHUNK = 2048  # tokens of a row that one block samples from
_CHUNK_THREADS = 256
_PLAN_THREADS = 1024
_PICK_WARPS = 4
_ROW_PLAN_BYTES = 96
_TOKEN_SCORE_BYTES = 16
_PLAN_MEMORY_BYTES = 49432
_ALIGNMENT = 256  # of the parts of a workspace

_MASKS = {
    # the element in C++, and the bits for seen and hidden
    MaskKind.boolean: ("unsigned char", MaskValues8(seen=1, hidden=0)),
    MaskKind.float32: ("unsigned int", MaskValues32(seen=0, hidden=0xFF800000)),
    MaskKind.bfloat16: ("unsigned short", MaskValues16(seen=0, hidden=0xFF80)),
    MaskKind.float16: ("unsigned short", MaskValues16(seen=0, hidden=0xFC00)),
}


@dataclass(frozen=True)
class Source:
    """A file of ``plugins/kernels``: its kernels, in C++, and what it must agree with."""

    name: str
    kernels: tuple[str, ...]
    checks: tuple[tuple[str, int], ...]
    options: tuple[str, ...] = ()


SOURCES = {
    source.name: source
    for source in (
        Source(
            "accept.cu",
            ("accept_walk",),
            (
                ("kWarps", _ACCEPT_WARPS),
                ("kLanes", _WARP),
                *layout_checks("AcceptParams", AcceptParams),
            ),
        ),
        Source(
            "tree_mask.cu",
            ("fill_mask<unsigned char>", "fill_mask<unsigned short>", "fill_mask<unsigned int>"),
            (
                ("kThreads", _MASK_THREADS),
                *((f"int(MaskKind::{kind.cpp_name})", kind.value) for kind in MaskKind),
                *layout_checks("TreeMaskParams", TreeMaskParams),
                *layout_checks("MaskValues<unsigned char>", MaskValues8),
                *layout_checks("MaskValues<unsigned short>", MaskValues16),
                *layout_checks("MaskValues<unsigned int>", MaskValues32),
            ),
        ),
        Source(
            "kv_compact.cu",
            ("move_rows<uint4>", "move_rows<unsigned char>"),
            (
                ("kMaxCompactPairs", MAX_COMPACT_PAIRS),
                ("kThreads", _MOVE_THREADS),
                ("kCachesOfLaunch", CACHES_OF_LAUNCH),
                ("kSharedBytes", _MOVE_SHARED_BYTES),
                ("kWidestSlice", _MOVE_WIDEST_SLICE),
                *layout_checks("Caches", Caches),
                *layout_checks("Moves", Moves),
            ),
        ),
        Source(
            "sampling.cu",
            ("chunk_maxima", "plan_rows", "sample_chunks", "pick_tokens"),
            (
                ("kChunk", _CHUNK),
                ("kChunkThreads", _CHUNK_THREADS),
                ("kPlanThreads", _PLAN_THREADS),
                ("kPickWarps", _PICK_WARPS),
                ("kLanes", _WARP),
                ("sizeof(RowPlan)", _ROW_PLAN_BYTES),
                ("sizeof(TokenScore)", _TOKEN_SCORE_BYTES),
                ("sizeof(PlanMemory)", _PLAN_MEMORY_BYTES),
                *layout_checks("SamplingRows", SamplingRows),
            ),
            # A fused multiply-add rounds once where the CPU rounds twice.
            ("--fmad=false",),
        ),
    )
}


def source_root() -> Path:
    """The folder with ``plugins`` and ``cpp``; BuildError if this installation has none."""
    for root in SOURCE_ROOTS:
        if (root / "plugins" / "kernels.hpp").is_file():
            return root
    raise BuildError(
        f"the sources of the CUDA kernels are in none of {', '.join(map(str, SOURCE_ROOTS))};"
        " install trtspec again: pip install --no-build-isolation <its source folder>"
    )


def compile_kernels(source: Source, architecture: int) -> Compiled:
    """Compile for a compute capability (major * 10 + minor).

    BuildError if it does not compile or does not agree with this module, or NVRTC is missing.
    """
    root = source_root()
    plugins = root / "plugins"
    checks = "\n".join(
        f'static_assert({expression} == {value}, "cuda_launch.py has {value}");'
        for expression, value in source.checks
    )
    return compile_source(
        source.name,
        (plugins / "kernels" / source.name).read_text()
        + f"\nnamespace trtspec::cuda {{\n{checks}\n}}\n",
        architecture,
        # The stand-ins first: NVRTC has no headers of the host's, and launches nothing.
        (plugins / "nvrtc", plugins, plugins / "kernels", root / "cpp/include", root / "cpp/ops"),
        [f"trtspec::cuda::{kernel}" for kernel in source.kernels],
        source.options,
    )


def sample_workspace(rows: int, vocab: int) -> int:
    """Bytes of device memory, aligned to 256, that `CudaKernels.sample` works in."""
    return sum(_sample_parts(rows, vocab))


def _sample_parts(rows: int, vocab: int) -> tuple[int, int, int]:
    """Bytes for the maxima of chunks, the plans of rows, the best tokens of chunks."""
    chunks = rows * -(-vocab // _CHUNK)
    sizes = (4 * chunks, _ROW_PLAN_BYTES * rows, _TOKEN_SCORE_BYTES * chunks)
    maxima, plans, found = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    return maxima, plans, found


class CudaKernels:
    """The kernels on one device. A source is compiled when the first of its kernels is launched:
    half a second, for sampling some.

    Pointers are addresses on the device, streams are handles (0: the default stream), launches
    return at once.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kernels: dict[str, Any] = {}

    def tree_mask(self, params: TreeMaskParams, stream: int) -> None:
        """``trtspec::cuda::tree_mask``; `params.kind` is a MaskKind."""
        if params.requests * params.width * params.length <= 0:
            return
        element, values = _MASKS[MaskKind(params.kind)]
        self._launch(
            "tree_mask.cu",
            f"fill_mask<{element}>",
            (params.requests * params.width, 1, 1),
            _MASK_THREADS,
            (params, values),
            stream,
        )

    def accept(self, params: AcceptParams, stream: int) -> None:
        """``trtspec::cuda::accept``."""
        if params.requests <= 0:
            return
        grid = (-(-params.requests // _ACCEPT_WARPS), 1, 1)
        self._launch("accept.cu", "accept_walk", grid, _ACCEPT_WARPS * _WARP, (params,), stream)

    def sample(
        self,
        logits: int,
        rows: int,
        vocab: int,
        params: SamplingRows,
        ids: int,
        workspace: int,
        stream: int,
    ) -> None:
        """``trtspec::cuda::sample``; ConfigError for a vocabulary of 2^22 tokens or more."""
        if not 1 <= vocab < 1 << 22:
            raise ConfigError(f"sample: the vocabulary must have 1 to 2^22 - 1 tokens, got {vocab}")
        if rows <= 0:
            return
        chunks = -(-vocab // _CHUNK)
        maxima_bytes, plans_bytes, _ = _sample_parts(rows, vocab)
        pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        maxima = pointer(workspace)
        plans = pointer(workspace + maxima_bytes)
        found = pointer(workspace + maxima_bytes + plans_bytes)
        aligned = ctypes.c_bool(vocab % 4 == 0 and logits % 16 == 0)
        of_rows = (pointer(logits), long(vocab))
        no_map = pointer(None)
        for kernel, blocks, threads, shared_bytes, arguments in (
            (
                "chunk_maxima",
                rows * chunks,
                _CHUNK_THREADS,
                0,
                (*of_rows, integer(chunks), aligned, maxima),
            ),
            (
                "plan_rows",
                rows,
                _PLAN_THREADS,
                _PLAN_MEMORY_BYTES,
                (*of_rows, params, no_map, maxima, integer(chunks), plans),
            ),
            (
                "sample_chunks",
                rows * chunks,
                _CHUNK_THREADS,
                0,
                (plans, maxima, integer(chunks), aligned, found),
            ),
            (
                "pick_tokens",
                -(-rows // _PICK_WARPS),
                _PICK_WARPS * _WARP,
                0,
                (found, long(rows), integer(chunks), pointer(ids)),
            ),
        ):
            grid = (blocks, 1, 1)
            self._launch("sampling.cu", kernel, grid, threads, arguments, stream, shared_bytes)

    def kv_compact(
        self,
        caches: Sequence[int],
        row_bytes: int,
        src_slots: int,
        dst_slots: int,
        pairs: int,
        stream: int,
    ) -> None:
        """``trtspec::cuda::kv_compact``: in every cache, row src_slots[i] moves to dst_slots[i].

        ConfigError for more than MAX_COMPACT_PAIRS pairs.
        """
        if pairs > MAX_COMPACT_PAIRS:
            raise ConfigError(
                f"one kv_compact moves at most {MAX_COMPACT_PAIRS} rows, got {pairs};"
                " pairs of different requests may go in calls of their own"
            )
        if pairs <= 0 or row_bytes <= 0:
            return
        for first in range(0, len(caches), CACHES_OF_LAUNCH):
            some = caches[first : first + CACHES_OF_LAUNCH]
            vectors = row_bytes % 16 == 0 and all(cache % 16 == 0 for cache in some)
            unit = 16 if vectors else 1
            slice_bytes = _MOVE_WIDEST_SLICE
            while slice_bytes > 16 and slice_bytes * pairs > _MOVE_SHARED_BYTES // 2:
                slice_bytes //= 2
            slice_bytes = min(slice_bytes, -(-row_bytes // unit) * unit)
            moves = Moves(
                src=src_slots,
                dst=dst_slots,
                pairs=pairs,
                row_units=row_bytes // unit,
                slice_units=slice_bytes // unit,
            )
            held = Caches()
            held.data[: len(some)] = some
            self._launch(
                "kv_compact.cu",
                f"move_rows<{'uint4' if vectors else 'unsigned char'}>",
                (-(-moves.row_units // moves.slice_units), len(some), 1),
                _MOVE_THREADS,
                (held, moves),
                stream,
                slice_bytes * pairs,
            )

    def _launch(
        self,
        source: str,
        kernel: str,
        grid: Grid,
        threads: int,
        arguments: Sequence[Any],
        stream: int,
        shared_bytes: int = 0,
    ) -> None:
        name = f"trtspec::cuda::{kernel}"
        if name not in self._kernels:
            compiled = compile_kernels(SOURCES[source], self._device.architecture)
            self._kernels |= self._device.load(compiled)
        self._device.launch(self._kernels[name], grid, threads, shared_bytes, stream, arguments)


@cache
def kernels_of(device: int) -> CudaKernels:
    """The kernels on device `device`, one object a process.

    BuildError if cuda-python, NVRTC, the driver or the device is missing.
    """
    return CudaKernels(Device(device))
