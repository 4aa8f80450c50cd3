"""The engines of a bring-up: an 8B model's cost and the embedded models' text (see
`trtspec.bench.synthetic`), one engine for chains and one for trees, compiled behind other parts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.backends.registry import DEFAULT, backends
from trtspec.bench.gpu_bringup.packages import keep, restore
from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.methods import BenchMethod, read_methods
from trtspec.bench.synthetic.engine import open_llm, synthetic_engine
from trtspec.bench.synthetic.sizes import SIZES, Sizes
from trtspec.builder.available_drafts import available_drafts
from trtspec.builder.graph_cache import compiled_root, kept_graphs
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import graph_names
from trtspec.llmapi.engines import build
from trtspec.llmapi.llm import LLM

_TARGET, _HEAD = "trtspec-tiny", "trtspec-tiny-eagle3"
_VOCABULARY = 128256


@dataclass(frozen=True)
class Family:
    """Methods that one engine serves, beside no drafts; ``largest``: the one that it is built for,
    of which the others are cuts."""

    largest: str
    methods: tuple[str, ...]


CHAINS = Family("eagle3:5", ("none", "eagle3:5", "eagle3:3", "eagle3:5+adaptive"))
TREES = Family("eagle3:8,6,64", ("eagle3:8,6,24", "eagle3:8,6,64", "eagle3:8,6,64+adaptive"))


@dataclass(frozen=True)
class Scale:
    """How large a run is. sizes: of the engines; None: those of the embedded models themselves.
    context: tokens of a long prompt. tokens: that are generated. methods: of a family."""

    sizes: Sizes | None
    backend: str
    dtype: str
    batches: tuple[int, ...]
    context: int
    tokens: int
    methods: int

    @classmethod
    def of(cls, place: Place) -> Scale:
        """That of a GPU; or of a rehearsal, by a backend that compiles nothing."""
        if place.is_rehearsal:
            eager = next(each.name for each in backends().values() if not each.makes_artifacts)
            return cls(None, eager, "float32", (1, 2), 40, 8, 2)
        sizes = replace(SIZES["8b"], vocab_size=_VOCABULARY)
        return cls(sizes, DEFAULT, "bfloat16", (1, 8, 64), 8192, 96, 9)


def compile_engine(family: Family, place: Place) -> Iterable[Case]:
    yield Case({"engine": family.largest}, partial(_compile, place, family))


compile_chains, compile_trees = partial(compile_engine, CHAINS), partial(compile_engine, TREES)


def _compile(place: Place, family: Family) -> Mapping[str, Any]:
    """Build an engine, of whose graphs those are taken that another run has compiled, and keep what
    a next run can take."""
    began = time.perf_counter()
    restored = restore(place.output, compiled_root())
    engine = EngineConfig.read(engine_of(place, family))
    taken, size = time.perf_counter() - began, 0
    if engine.backend.makes_artifacts:
        graphs = kept_graphs(engine, graph_names(engine)).values()
        size = keep({*graphs, *(compiled_root() / name for name in restored)}, place.output)
    return {"seconds": taken, "graphs of another run": len(restored), "bytes kept": size}


def engine_of(place: Place, family: Family) -> Path:
    """The engine folder of a family, which is built if it is not there."""
    scale, config = Scale.of(place), method_named(family.largest).config
    assert config is not None, "an engine is built for drafts"
    options: dict[str, Any] = {
        "backend": scale.backend,
        "device": place.device,
        "dtype": scale.dtype,
        "max_batch_size": max(scale.batches),
        "max_seq_len": scale.context + 2 * scale.tokens,
        "max_num_tokens": max(max(scale.batches) * config.num_rows, scale.context),
    }
    if scale.sizes is None:
        return build(_TARGET, config, **options)
    return synthetic_engine(_TARGET, scale.sizes, config, **options)


def method_named(spelling: str) -> BenchMethod:
    """See `read_methods`."""
    return read_methods([spelling], available_drafts(_TARGET, [_HEAD]))[-1]


class Opened:
    """The engine of a family, open for one method at a time: opening takes seconds."""

    def __init__(self, place: Place, family: Family) -> None:
        self._place, self._family = place, family
        self._method = ""
        self._llm: LLM | None = None

    def __call__(self, method: str) -> LLM:
        """The model, drafting by that method."""
        if self._llm is not None and self._method == method:
            return self._llm
        if self._llm is not None:
            self._llm.shutdown()
        config = method_named(method).config
        graphs = {"batch_sizes": list(Scale.of(self._place).batches)}
        self._llm = open_llm(
            engine_of(self._place, self._family),
            False if config is None else config,
            cuda_graph_config=graphs,
        )
        self._method = method
        return self._llm
