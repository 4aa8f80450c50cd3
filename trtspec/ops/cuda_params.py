"""The parameters of the CUDA kernels, laid out like their C++ types (``plugins/kernels.hpp`` and
the sources beside it, which have the contracts). `layout_checks` expresses this in C++, for the
compiler to compare."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from trtspec.errors import ConfigError

CACHES_OF_LAUNCH = 256


@dataclass(frozen=True)
class Source:
    """A file of ``plugins/kernels``: its kernels, in C++, and the facts that it must agree with."""

    name: str
    kernels: tuple[str, ...]
    checks: tuple[tuple[str, int], ...]
    options: tuple[str, ...] = ()


class Parameters(ctypes.Structure):
    """Plain data in C++ layout; all fields start at zero, and only existing ones can be set."""

    def __init__(self, **values: float) -> None:
        known = [field[0] for field in self._fields_]
        if unknown := sorted(values.keys() - set(known)):
            raise ConfigError(
                f"{type(self).__name__} has no {', '.join(unknown)}; it has {', '.join(known)}"
            )
        super().__init__(**values)


class MaskElement(IntEnum):
    """Elements of a mask: true / 0 for seen, false / -inf for hidden."""

    boolean = 0
    float32 = 1
    bfloat16 = 2
    float16 = 3

    @property
    def cpp_name(self) -> str:
        """The name in kernels.hpp."""
        return ("boolean", "f32", "bf16", "f16")[self]


class TreeMaskParams(Parameters):
    """``TreeMaskParams`` of kernels.hpp."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("kind", ctypes.c_int),
        ("requests", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("mask_words", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("is_tree", ctypes.c_void_p),
        ("tree_mask", ctypes.c_void_p),
        ("sliding_window", ctypes.c_int64),
    )


class AcceptParams(Parameters):
    """``AcceptParams`` of kernels.hpp."""

    _fields_ = (
        ("sampled", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("row_start", ctypes.c_void_p),
        ("requests", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("accepted_rows", ctypes.c_void_p),
        ("num_emitted", ctypes.c_void_p),
        ("emitted", ctypes.c_void_p),
        ("src_slots", ctypes.c_void_p),
        ("dst_slots", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("table_width", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("forced", ctypes.c_void_p),
    )


class Caches(Parameters):
    """``Caches`` of kv_compact.cu."""

    _fields_ = (("data", ctypes.c_void_p * CACHES_OF_LAUNCH),)


class Moves(Parameters):
    """``Moves`` of kv_compact.cu."""

    _fields_ = (
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
        ("pairs", ctypes.c_int),
        ("row_units", ctypes.c_int),
        ("slice_units", ctypes.c_int),
    )


class SampleParams(Parameters):
    """``SamplingRows`` of trtspec/sampling.hpp."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "sample_index",
            "output_index",
        )
    )


class LogitsMaskParams(Parameters):
    """``LogitsMask`` of trtspec/logits_mask.hpp."""

    _fields_ = (
        ("allowed", ctypes.c_void_p),
        ("words", ctypes.c_int64),
        ("bias_rows", ctypes.c_void_p),
        ("bias_ids", ctypes.c_void_p),
        ("bias_values", ctypes.c_void_p),
        ("num_biases", ctypes.c_int64),
    )


class TreePoolParams(Parameters):
    """``TreePool`` of trtspec/build_tree.hpp."""

    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("requests", ctypes.c_int64),
        ("size", ctypes.c_int64),
    )


class TreeChildrenParams(Parameters):
    """``TreeChildren`` of trtspec/build_tree.hpp."""

    _fields_ = (
        ("begin", ctypes.c_int64),
        ("lanes", ctypes.c_int64),
        ("branching", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("gains", ctypes.c_void_p),
        ("above", ctypes.c_void_p),
    )


class TreeBeamParams(Parameters):
    """``TreeBeam`` of trtspec/build_tree.hpp."""

    _fields_ = (
        ("width", ctypes.c_int64),
        ("chosen", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("index", ctypes.c_void_p),
        ("lanes", ctypes.c_void_p),
        ("first_bit", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("seen_above", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
    )


class KeptTreeParams(Parameters):
    """``KeptTree`` of trtspec/build_tree.hpp."""

    _fields_ = (
        ("nodes", ctypes.c_int64),
        ("chosen", ctypes.c_void_p),
        ("tokens", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
    )


class MarginalTreesParams(Parameters):
    """``MarginalTrees`` of trtspec/build_tree.hpp."""

    _fields_ = (
        ("requests", ctypes.c_int64),
        ("depths", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("gains", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("lanes", ctypes.c_void_p),
        ("ranks", ctypes.c_void_p),
        ("keep_all", ctypes.c_bool),
        ("nodes", ctypes.c_int64),
        ("out_tokens", ctypes.c_void_p),
        ("out_parents", ctypes.c_void_p),
        ("out_scores", ctypes.c_void_p),
    )


class MaskValues8(Parameters):
    """``MaskValues<unsigned char>`` of tree_mask.cu."""

    _fields_ = (("seen", ctypes.c_uint8), ("hidden", ctypes.c_uint8))


class MaskValues16(Parameters):
    """``MaskValues<unsigned short>`` of tree_mask.cu."""

    _fields_ = (("seen", ctypes.c_uint16), ("hidden", ctypes.c_uint16))


class MaskValues32(Parameters):
    """``MaskValues<unsigned int>`` of tree_mask.cu."""

    _fields_ = (("seen", ctypes.c_uint32), ("hidden", ctypes.c_uint32))


def layout_checks(cpp_name: str, structure: type[Parameters]) -> Iterable[tuple[str, int]]:
    """C++ constant expressions and their required values: the same size, and the same fields in the
    same order, each with the same size. (NVRTC 13.0 has no offsetof in any form.)"""
    yield f"sizeof({cpp_name})", ctypes.sizeof(structure)
    names = [field[0] for field in structure._fields_]
    for name in names:
        yield f"sizeof({cpp_name}::{name})", getattr(structure, name).size
    # Initializers that are not in the order of the fields do not compile.
    yield f"({cpp_name}{{{', '.join(f'.{name} = {{}}' for name in names)}}}, 1)", 1
