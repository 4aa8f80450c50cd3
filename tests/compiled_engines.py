"""Compiled engines that several files of tests run, in Python and in C++.

A graph depends on shapes alone, and each is compiled once a run: so all have the same limits, most
have targets of one shape, and those with known texts lend their graphs to such as have noise for
weights.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.build_engine import cached_engine
from trtspec.builder.graph_cache import graph_key
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.graphs import engine_graphs
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.speculative.options import parse_speculative_config

from .e2e.dflash_heads import dflash, random_dflash
from .e2e.eagle_heads import V, cycling_target, eagle, save_right_heads
from .e2e.helpers import random_prompt
from .e2e.hybrid_drafts import hybrid
from .e2e.medusa_heads import idle_heads, medusa, right_heads, write_heads
from .e2e.mtp_modules import DEPTHS, mtp, save_deep, save_right
from .e2e.parallel_drafts import p_eagle, pard, right_pard, save_pard, save_right_p_eagle
from .shared_folder import one_at_a_time, shared_folder

LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": 256, "max_num_tokens": 64}
CHAIN = {"method": "draft_model", "num_speculative_tokens": 4}
TREE = {"method": "eagle3", "num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 12}
STATIC = {"eagle_choices": [[0], [2], [0, 0], [2, 1], [0, 0, 0], [0, 0, 0, 0]]}
PARD_TREE = {"num_speculative_tokens": 3, "topk": 4, "num_draft_tokens": 10}
"""Wide: its rollout writes few rows for it."""


def build_one(
    tmp_path_factory: pytest.TempPathFactory,
    target: str | Path,
    speculation: Mapping[str, Any] | None,
    **options: Any,
) -> Path:
    """The folder of an engine. Of engines with one graph of a target, one is built at a time in all
    processes of the run: so no graph that two of them share is compiled twice."""
    build = BuildConfig("float32", **{**LIMITS, **options})
    plan = plan_build(target, build, parse_speculative_config(speculation))
    target_graph = next(iter(engine_graphs(plan.engine)))
    key = graph_key(plan.engine, target_graph)
    with one_at_a_time(shared_folder(tmp_path_factory, f"builds-{key}")):
        return Path(cached_engine(plan))


@dataclass(frozen=True)
class Pair:
    """A target, how it drafts, a smaller cut of the same drafts, and prompts."""

    target: Path
    speculation: dict[str, Any]
    smaller: dict[str, Any]
    prompts: Sequence[Sequence[int]]


def noisy(folder: Path, out: Path) -> Path:
    """A checkpoint of the same shapes whose weights are noise: no two scores are equal, so that
    rounding decides nothing."""
    shutil.copytree(folder, out)
    noise = torch.Generator().manual_seed(17)
    for path in (*out.glob("*.safetensors"), *out.glob("*.pt")):
        tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
        for name, weight in sorted(tensors.items()):
            if weight.is_floating_point():
                random = torch.randn(weight.shape, generator=noise)
                tensors[name] = 1 + 0.2 * random if "norm" in name else 0.15 * random
        if path.suffix == ".safetensors":
            save_file(tensors, path, {"format": "pt"})
        else:
            torch.save(tensors, path)
    return out


def _embedded_prompts() -> list[Sequence[int]]:
    tokenizer = load_tokenizer(Path(find_model("trtspec-tiny")))
    prompts = [prompt.token_ids for prompt in held_out_prompts(tokenizer, 4, 40)]
    return [prompts[0], prompts[1][:1], prompts[2][:24], prompts[3][:14]]


def _noisy_prompts() -> list[Sequence[int]]:
    return [random_prompt(210, 30, V), [7], random_prompt(211, 6, V) * 4, random_prompt(212, 14, V)]


class Pairs:
    """What there is an engine of, each made when first asked for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.pair = cache(self._pair)

    def _pair(self, name: str) -> Pair:
        if name in _EMBEDDED:
            speculation, smaller = _EMBEDDED[name]
            target = Path(find_model("trtspec-tiny"))
            return Pair(target, speculation, smaller, _embedded_prompts())
        target, speculation, smaller = _NOISY[name](self._root / name)
        return Pair(target, speculation, {**speculation, **smaller}, _noisy_prompts())


_CHAIN = {**CHAIN, "model": str(find_model("trtspec-tiny-draft"))}
_EAGLE3 = {**TREE, "model": str(find_model("trtspec-tiny-eagle3"))}
_EMBEDDED: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chain": (_CHAIN, {**_CHAIN, "num_speculative_tokens": 2}),
    "eagle3": (_EAGLE3, {**_EAGLE3, "num_speculative_tokens": 2, "num_draft_tokens": 6}),
    "hybrid": (
        hybrid({"method": "suffix", "num_speculative_tokens": 8}, _CHAIN, _EAGLE3,
               num_draft_tokens=16),
        hybrid(_EAGLE3, {"method": "suffix", "num_speculative_tokens": 8}),
    ),
}  # fmt: skip
Made = tuple[Path, dict[str, Any], dict[str, Any]]


def _target(root: Path) -> Path:
    cycling_target(1.0).save_pretrained(root / "right")
    return noisy(root / "right", root / "target")


def _static(root: Path) -> Made:
    heads = save_right_heads(root / "heads", 3.0)
    head = noisy(heads.eagle1, root / "head")
    return _target(root), eagle(head, "eagle", **STATIC), {}


def _pard(root: Path) -> Made:
    draft = noisy(save_pard(right_pard(1.0), root / "right_pard"), root / "pard")
    smaller = {"num_speculative_tokens": 2, "num_draft_tokens": 5}
    return _target(root), pard(draft, **PARD_TREE), smaller


def _p_eagle(root: Path) -> Made:
    head = noisy(save_right_p_eagle(root / "right_head", 1.0), root / "head")
    return _target(root), p_eagle(head, num_speculative_tokens=3), {"num_speculative_tokens": 2}


def _modules(root: Path) -> Made:
    folder = noisy(save_deep(root / "deep", "mimo"), root / "modules")
    return folder, mtp(num_speculative_tokens=DEPTHS), {"num_speculative_tokens": 2}


def _mtp(root: Path) -> Made:
    """One module at every depth."""
    folder = noisy(save_right(root / "right", 1.0, "qwen3_next", False), root / "modules")
    tree = {"num_speculative_tokens": 3, "topk": 4, "num_draft_tokens": 14}
    return folder, mtp(**tree), {"num_speculative_tokens": 2, "num_draft_tokens": 6}


def _medusa(root: Path) -> Made:
    """A static tree, matrices of the heads' own."""
    heads = noisy(write_heads(root / "right_heads", right_heads(3)), root / "heads")
    return _target(root), medusa(heads), {}


def _medusa_dynamic(root: Path) -> Made:
    """A dynamic tree, the target's head."""
    heads = noisy(write_heads(root / "idle_heads", idle_heads(3)), root / "heads")
    shape = {"topk": 3, "num_draft_tokens": 12}
    return _target(root), medusa(heads, **shape), medusa(heads, 2, topk=3, num_draft_tokens=5)


def _ddtree(root: Path) -> Made:
    """One layer causal with a window, the other not: both masks are in the graph."""
    network = random_dflash(cycling_target(1.0), root / "network", target_layer_ids=[1])
    file = network / "config.json"
    kinds = '"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 12'
    file.write_text(file.read_text().replace("{", "{" + kinds + ", ", 1))
    tree = {"num_speculative_tokens": 5, "num_draft_tokens": 16}
    return _target(root), dflash(network, "ddtree", **tree), {"num_speculative_tokens": 3}


_NOISY: Mapping[str, Callable[[Path], Made]] = {
    "static": _static,
    "pard": _pard,
    "p_eagle": _p_eagle,
    "modules": _modules,
    "mtp": _mtp,
    "medusa": _medusa,
    "medusa_dynamic": _medusa_dynamic,
    "ddtree": _ddtree,
}
NAMES = ("chain", "eagle3", *_NOISY)
