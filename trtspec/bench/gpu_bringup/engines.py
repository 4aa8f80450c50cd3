"""The engines of a bring-up: an 8B model's cost and the embedded models' text (see
`trtspec.bench.synthetic`), one engine for chains and one for trees, compiled while other parts run.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.backends.registry import DEFAULT, backends
from trtspec.bench.gpu_bringup.packages import keep, restore
from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.runs.methods import BenchMethod, read_methods
from trtspec.bench.synthetic.engine import open_llm, synthetic_engine
from trtspec.bench.synthetic.sizes import SIZES, Sizes
from trtspec.builder.available_drafts import available_drafts
from trtspec.builder.graph_cache import compiled_root, kept_graphs
from trtspec.builder.locate import cache_root, find_model
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import graph_names
from trtspec.llmapi.engines import build
from trtspec.llmapi.llm import LLM

_TARGET, _HEAD = "trtspec-tiny", "trtspec-tiny-eagle3"
_VOCABULARY, _DRAFT_VOCABULARY, _POSITIONS = 128256, 32768, 16384
_MOST_ROWS = 64
"""Per request in a step, for both families: with the same limits they share the target's graph."""


@dataclass(frozen=True)
class Family:
    """Methods that one engine serves, besides no drafts; ``largest``: the one that it is built for,
    of which the others are cuts."""

    largest: str
    methods: tuple[str, ...]


CHAINS = Family("eagle3:5", ("none", "eagle3:5", "eagle3:3", "eagle3:5+adaptive"))
TREES = Family("eagle3:8,6,64", ("eagle3:8,6,24", "eagle3:8,6,64", "eagle3:8,6,64+adaptive"))


@dataclass(frozen=True)
class Scale:
    """How large a run is. sizes: of the engines; None: those of the embedded models. context:
    tokens of a long prompt. tokens: to generate. methods: of a family."""

    sizes: Sizes | None
    backend: str
    dtype: str
    batches: tuple[int, ...]
    context: int
    tokens: int
    methods: int

    @classmethod
    def of(cls, place: Place) -> Scale:
        """The scale for a GPU, or for a rehearsal, with a backend that compiles nothing."""
        if place.is_rehearsal:
            eager = next(each.name for each in backends().values() if not each.makes_artifacts)
            return cls(None, eager, "float32", (1, 2), 40, 8, 2)
        vocabularies = {"vocab_size": _VOCABULARY, "draft_vocab_size": _DRAFT_VOCABULARY}
        sizes = replace(SIZES["8b"], **vocabularies)
        return cls(sizes, DEFAULT, "bfloat16", (1, 8, 64), 8192, 96, 9)


def compile_engine(family: Family, place: Place) -> Iterable[Case]:
    yield Case({"engine": family.largest}, partial(_compile, place, family))


compile_chains, compile_trees = partial(compile_engine, CHAINS), partial(compile_engine, TREES)


def _compile(place: Place, family: Family) -> Mapping[str, Any]:
    """Build an engine, reusing graphs that another run has compiled, and keep those that a next run
    can use."""
    began = time.perf_counter()
    restored = restore(place.output, compiled_root())
    engine = EngineConfig.read(engine_of(place, family))
    taken, size = time.perf_counter() - began, 0
    if engine.backend.makes_artifacts:
        graphs = kept_graphs(engine, graph_names(engine)).values()
        size = keep({*graphs, *(compiled_root() / name for name in restored)}, place.output)
    return {"seconds": taken, "graphs of another run": len(restored), "bytes kept": size}


def engine_of(place: Place, family: Family) -> Path:
    """The engine folder of a family, built if necessary."""
    scale, config = Scale.of(place), method_named(family.largest).config
    assert config is not None, "an engine is built for drafts"
    options: dict[str, Any] = {
        "backend": scale.backend,
        "device": place.device,
        "dtype": scale.dtype,
        "max_batch_size": max(scale.batches),
        "max_seq_len": scale.context + scale.tokens + 2 * _MOST_ROWS,
        "max_num_tokens": max(max(scale.batches) * _MOST_ROWS, scale.context),
    }
    if scale.sizes is None:
        return build(lengthened(_TARGET), config, **options)
    return synthetic_engine(lengthened(_TARGET), scale.sizes, config, **options)


def method_named(spelling: str) -> BenchMethod:
    """See `read_methods`."""
    drafts = available_drafts(str(lengthened(_TARGET)), [str(lengthened(_HEAD))])
    return read_methods([spelling], drafts)[-1]


def lengthened(name: str) -> Path:
    """An embedded checkpoint that accepts long prompts: beyond its own length the output is
    meaningless, but costs the same."""
    source, folder = find_model(name), cache_root() / "lengthened" / name
    config = folder / "config.json"
    if not config.exists():  # it is written last
        shutil.copytree(source, folder, ignore=lambda *_: [config.name], dirs_exist_ok=True)
        fields = json.loads((source / config.name).read_text())
        config.write_text(json.dumps({**fields, "max_position_embeddings": _POSITIONS}))
    return folder


class Opened:
    """The engine of a family, open in one way at a time, since opening takes seconds."""

    def __init__(self, place: Place, family: Family) -> None:
        self._place, self._family = place, family
        self._way: tuple[str, int] | None = None
        self._llm: LLM | None = None

    def __call__(self, method: str, steps_ahead: int = 0) -> LLM:
        """The model, drafting by that method."""
        if self._llm is not None and self._way == (method, steps_ahead):
            return self._llm
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None  # nor if the next one cannot be opened
        config, scale = method_named(method).config, Scale.of(self._place)
        folder = engine_of(self._place, self._family)
        build = EngineConfig.read(folder).build
        # No more than is needed: other engines are compiled meanwhile, with weights on the device.
        tokens = max(scale.batches) * (build.max_seq_len or 0)
        self._llm = open_llm(
            folder,
            False if config is None else config,
            cuda_graph_config={"batch_sizes": list(scale.batches)},
            kv_cache_config={"max_tokens": tokens},
            steps_ahead=steps_ahead,
        )
        self._way = method, steps_ahead
        return self._llm
