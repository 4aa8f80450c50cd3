"""The flags of trtspec-build for `TensorRTConfig`, each named as its field."""

from __future__ import annotations

import argparse
from typing import Any


def add_flags(parser: Any) -> None:
    """``parser``: an `argparse` group. A flag that was not given is None."""
    add = parser.add_argument
    add(
        "--compute_capability", help="of the GPU to build for, such as 8.9; the one here without it"
    )
    add("--builder_optimization_level", "--builder_opt", type=int, help="0 (builds fastest) to 5")
    add("--profiling_verbosity", help="layer_names_only (default), detailed or none")
    add("--timing_cache", "--input_timing_cache", help="file of kernel times")
    add(
        "--plugins",
        action=argparse.BooleanOptionalAction,
        help="whether the target's engine makes masks, samples and accepts, by trtspec's plugins "
        "(default: where they can be used, and were built)",
    )
    add(
        "--paged_attention",
        action="store_true",
        default=None,
        help="attend over paged caches by a plugin, as the default backend does, in place of a "
        "cache slot a sequence",
    )
    add(
        "--strip_plan",
        action="store_true",
        default=None,
        help="engines without weights, read from the folder's weight files when they are loaded",
    )
    add(
        "--refit",
        action="store_true",
        default=None,
        help="engines that take other weights, of replaced weight files, when they are loaded",
    )
