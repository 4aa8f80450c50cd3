"""Launches of the CUDA kernels that grow draft trees (``plugins/kernels/build_tree.cu``), for
`trtspec.ops.cuda_launch`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from trtspec.ops.cuda_driver import Grid
from trtspec.ops.cuda_params import (
    KeptTreeParams,
    MarginalTreesParams,
    Source,
    TreeBeamParams,
    TreeChildrenParams,
    TreePoolParams,
    layout_checks,
)

_THREADS = 256
_NEAR_SCORES = 8192

TREE_SOURCE = Source(
    "build_tree.cu",
    ("expand", "keep", "marginals"),
    (
        ("kThreads", _THREADS),
        ("kNearScores", _NEAR_SCORES),
        *layout_checks("TreePool", TreePoolParams),
        *layout_checks("TreeChildren", TreeChildrenParams),
        *layout_checks("TreeBeam", TreeBeamParams),
        *layout_checks("KeptTree", KeptTreeParams),
        *layout_checks("MarginalTrees", MarginalTreesParams),
    ),
)


def marginal_trees_workspace(requests: int, candidates: int) -> int:
    """Bytes of device memory that `TreeLaunches.marginal_trees` works in; ``candidates``: of all
    depths."""
    return 12 * requests * candidates


class TreeLaunches:
    """The launches, by the object that has the kernels."""

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
        raise NotImplementedError

    def expand_tree(
        self,
        pool: TreePoolParams,
        children: TreeChildrenParams,
        beam: TreeBeamParams,
        stream: int,
    ) -> None:
        """``trtspec::cuda::expand_tree``."""
        shared = 0 if beam.chosen else _near_bytes(children.lanes * children.branching)
        self._launch_trees("expand", pool.requests, shared, (pool, children, beam), stream)

    def keep_best(
        self,
        pool: TreePoolParams,
        children: TreeChildrenParams,
        tree: KeptTreeParams,
        stream: int,
    ) -> None:
        """``trtspec::cuda::keep_best``."""
        shared = 4 * tree.nodes + (0 if tree.chosen else _near_bytes(pool.size))
        self._launch_trees("keep", pool.requests, shared, (pool, children, tree), stream)

    def marginal_trees(
        self, params: MarginalTreesParams, candidates: int, workspace: int, stream: int
    ) -> None:
        """``trtspec::cuda::marginal_trees``."""
        shared = 4 * params.nodes + (0 if params.keep_all else _near_bytes(candidates))
        arguments = (params, ctypes.c_int(candidates), ctypes.c_void_p(workspace))
        self._launch_trees("marginals", params.requests, shared, arguments, stream)

    def _launch_trees(
        self, kernel: str, requests: int, shared: int, arguments: Sequence[Any], stream: int
    ) -> None:
        if requests > 0:
            grid = (requests, 1, 1)
            self._launch("build_tree.cu", kernel, grid, _THREADS, arguments, stream, shared)


def _near_bytes(scores: int) -> int:
    return 4 * scores if scores <= _NEAR_SCORES else 0
