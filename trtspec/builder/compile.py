"""torch.export and AOTInductor: from a module to a package, once per distinct graph."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

import trtspec.models
import trtspec.ops
from trtspec.config.model import ModelConfig
from trtspec.engine.folder import CacheLayout, Environment
from trtspec.errors import BuildError

# Weights stay outside (the folder maps them), and the small point-wise kernels stay on one thread:
# a fork costs more than they do; the matrix products and attention parallelise inside their ops.
INDUCTOR_CONFIG: dict[str, Any] = {
    "aot_inductor.package_constants_in_so": False,
    "cpp.threads": 1,
}
_MAX_DIM = 1 << 30


def example_inputs(
    config: ModelConfig,
    dtype: torch.dtype,
    layout: CacheLayout,
    rollout: bool,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Example arguments of a model or rollout and the dynamic dimensions of each.

    Rows, requests, logits rows and cache blocks are dynamic; the width of the block tables and of
    the tree mask is fixed.
    """
    rows, requests, wanted, blocks = 7, 3, 5, 11
    t, b = Dim("rows", min=1, max=_MAX_DIM), Dim("requests", min=1, max=_MAX_DIM)
    r, n = Dim("logits_rows", min=1, max=_MAX_DIM), Dim("blocks", min=1, max=_MAX_DIM)
    args: list[Any] = [
        torch.zeros(rows, dtype=torch.int64),
        torch.zeros(rows, dtype=torch.int64),
        torch.full((rows,), -1, dtype=torch.int64),
        torch.zeros(requests, layout.blocks_per_sequence, dtype=torch.int32),
        torch.tensor([0, 2, 4, rows], dtype=torch.int32),
        torch.zeros(requests, dtype=torch.int32),
        torch.zeros(requests, dtype=torch.bool),
        torch.zeros(rows, layout.mask_words, dtype=torch.int64),
    ]
    dims: list[Any] = [{0: t}, {0: t}, {0: t}, {0: b}, {0: b + 1}, {0: b}, {0: b}, {0: t}]
    if rollout:
        floats, integers = torch.float32, torch.int64
        for kind in (integers, floats, torch.int32, floats, floats, integers, integers, integers):
            args.append(torch.ones(requests, dtype=kind))
            dims.append({0: b})
    else:
        args.append(torch.zeros(wanted, dtype=torch.int64))
        dims.append({0: r})
    shape = (blocks, layout.tokens_per_block, config.num_kv_heads, config.head_dim)
    for _ in range(2):
        args.append([torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)])
        dims.append([{0: n}] * config.num_layers)
    return tuple(args), tuple(dims)


def graph_key(config: ModelConfig, facts: Sequence[object]) -> str:
    """A key over everything the compiled code depends on: shapes, source and environment."""
    source = hashlib.blake2b(digest_size=16)
    for package in (trtspec.models, trtspec.ops):
        for path in sorted(Path(package.__path__[0]).glob("*.py")):
            source.update(path.read_bytes())
    source.update(Path(__file__).read_bytes())
    shape = {k: v for k, v in config.to_dict().items() if not k.endswith(("token_id", "token_ids"))}
    text = json.dumps(
        [shape, [str(f) for f in facts], source.hexdigest(), asdict(Environment.here())],
        sort_keys=True,
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def compile_module(
    module: nn.Module, inputs: tuple[tuple[Any, ...], tuple[Any, ...]], package: Path
) -> None:
    """Export and compile ``module`` into ``package``.

    Raises:
        BuildError: no C++ compiler, or the compiler failed.
    """
    if not any(
        shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name
    ):
        raise BuildError(
            "no C++ compiler found (looked for $CXX, g++, clang++); install one, for example "
            "the Debian package g++"
        )
    args, dims = inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module.eval(), args, dynamic_shapes=dims, strict=False)
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs=INDUCTOR_CONFIG
            )
        except Exception as error:
            raise BuildError(f"AOTInductor could not compile {package.name}: {error}") from error


def compile_cached(
    module: nn.Module,
    inputs: tuple[tuple[Any, ...], tuple[Any, ...]],
    key: str,
    destination: Path,
    cache: Path,
) -> bool:
    """Put the package for ``key`` at ``destination``; return True if it had to be compiled."""
    stored = cache / f"{key}.pt2"
    fresh = not stored.exists()
    if fresh:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            package = Path(scratch) / "package.pt2"
            compile_module(module, inputs, package)
            package.replace(stored)
    shutil.copyfile(stored, destination)
    return fresh
