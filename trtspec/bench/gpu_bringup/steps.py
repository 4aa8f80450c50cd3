"""Parts about whole steps: an engine with an 8B model's cost, its calls, and steps by what they
are made of; with the default backend, and with those of libraries that run on a GPU.

The target and its head are the embedded ones, at an 8B model's sizes (see
`trtspec.bench.synthetic`): real acceptance at real cost. One engine is for chains, and one for the
largest tree, of which a smaller one with as many children of a node is a cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from trtspec.backends.base import Backend
from trtspec.backends.registry import DEFAULT, backends
from trtspec.bench.floor import measure_machine
from trtspec.bench.forward import ROLLOUT, VERIFY, CallShape, ForwardBench, row_of
from trtspec.bench.gpu_bringup.part import PartFailed, PartSkipped, Place
from trtspec.bench.methods import BenchMethod, read_methods
from trtspec.bench.rival import Rival
from trtspec.bench.synthetic.engine import open_llm, synthetic_engine
from trtspec.bench.synthetic.sizes import SIZES
from trtspec.builder.available_drafts import available_drafts
from trtspec.config.sampling import SamplingParams
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import TrtspecError
from trtspec.llmapi.engines import build
from trtspec.llmapi.llm import LLM

_TARGET, _HEAD = "trtspec-tiny", "trtspec-tiny-eagle3"
_PROMPT = "def main(argv):\n    "


@dataclass(frozen=True)
class Scale:
    """How large a run is. like: sizes by name; None: those of the embedded models themselves.
    methods: a chain, and trees, the largest one last."""

    like: str | None
    dtype: str
    methods: tuple[str, ...]
    rows: tuple[int, ...]
    batches: tuple[int, ...]
    context: int
    tokens: int
    seconds: float

    @classmethod
    def of(cls, place: Place) -> Scale:
        """That of a GPU, or of a rehearsal."""
        if place.is_rehearsal:
            return cls(
                None,
                "float32",
                ("eagle3:3", "eagle3:2,3,6", "eagle3:2,3,8"),
                (1, 8),
                (1, 2),
                16,
                8,
                0.02,
            )
        methods = ("eagle3:5", "eagle3:8,6,24", "eagle3:8,6,128")
        return cls("8b", "bfloat16", methods, (1, 6, 24, 128), (1, 8, 64), 512, 96, 0.4)


def fixture(place: Place) -> Mapping[str, Any]:
    """Compile the engines, which later parts find."""
    return {"engines": _engines(place, _default(place))}


def calls(place: Place) -> Mapping[str, Any]:
    """What single calls take, by rows and batch."""
    return {"calls": _calls(place, _default(place))}


def steps(place: Place) -> Mapping[str, Any]:
    """What steps of every method take, by batch."""
    return {"steps": _steps(place, _default(place))}


def library_fixture(place: Place) -> Mapping[str, Any]:
    """As `fixture`, of each backend of a library."""
    return {name: _engines(place, backend) for name, backend in _libraries(place).items()}


def library_calls(place: Place) -> Mapping[str, Any]:
    """As `calls`, of each backend of a library."""
    return {name: _calls(place, backend) for name, backend in _libraries(place).items()}


def library_steps(place: Place) -> Mapping[str, Any]:
    """As `steps`, of each backend of a library."""
    return {name: _steps(place, backend) for name, backend in _libraries(place).items()}


def _default(place: Place) -> Backend:
    """In a rehearsal, one that compiles nothing."""
    if place.is_rehearsal:
        return next(each for each in backends().values() if not each.makes_artifacts)
    return backends()[DEFAULT]


def _libraries(place: Place) -> dict[str, Backend]:
    """The other backends whose engines can be made here for this GPU."""
    if place.is_rehearsal:
        raise PartSkipped("no library runs an engine without a GPU")
    found, why = {}, []
    for name, backend in backends().items():
        if name == DEFAULT or not backend.makes_artifacts:
            continue
        try:
            device, _ = backend.resolve_device(place.device)
            backend.environment_to_build(device, backend.options_class())
            found[name] = backend
        except TrtspecError as error:
            why.append(f"{name}: {error}")
    if not found:
        raise PartSkipped("; ".join(why))
    return found


def methods_of(place: Place) -> list[BenchMethod]:
    """All methods, no speculation among them."""
    drafts = available_drafts(_TARGET, [_HEAD])
    return read_methods(Scale.of(place).methods, drafts)


def engine_of(place: Place, backend: Backend, method: BenchMethod) -> Path:
    """The engine folder that a method runs on, which is built if it is not there."""
    scale = Scale.of(place)
    methods = methods_of(place)
    alike = [each for each in methods if _children(each) == _children(method)]
    largest = (alike if method.config is not None else methods)[-1]
    rows = max(scale.batches) * max(scale.rows)
    options: dict[str, Any] = {
        "backend": backend.name,
        "device": place.device,
        "dtype": scale.dtype,
        "max_batch_size": max(scale.batches),
        "max_seq_len": 2 * scale.context,
        "max_num_tokens": max(rows, 2 * scale.context),
    }
    if scale.like is None:
        return build(_TARGET, largest.config, **options)
    return synthetic_engine(_TARGET, SIZES[scale.like], largest.config, **options)


def _children(method: BenchMethod) -> int:
    """Of a node, at most; a build fixes that."""
    config = method.config
    return config.tree.topk if isinstance(config, TreeDecodingConfig) else 0


def _engines(place: Place, backend: Backend) -> list[str]:
    methods = methods_of(place)
    return sorted({str(engine_of(place, backend, method)) for method in methods})


def _calls(place: Place, backend: Backend) -> list[dict[str, Any]]:
    """Of the engine with the largest tree."""
    scale, largest = Scale.of(place), methods_of(place)[-1]
    folder, config = engine_of(place, backend, largest), largest.config
    shapes = [
        CallShape(kind, count, batch, scale.context)
        for batch in scale.batches
        for kind, counts in ((VERIFY, scale.rows), (ROLLOUT, (1, 4)))
        for count in counts
    ]
    bench = ForwardBench(folder, config, shapes)
    times = [time for shape in shapes for time in bench.measure(shape, scale.seconds)]
    rates = measure_machine(place.device, scale.dtype, rows=scale.rows, seconds=scale.seconds)
    return [row_of(time, rates) for time in times]


def _steps(place: Place, backend: Backend) -> list[dict[str, Any]]:
    scale = Scale.of(place)
    rows: list[dict[str, Any]] = []
    for method in methods_of(place):
        config = False if method.config is None else method.config
        with open_llm(engine_of(place, backend, method), config) as llm:
            prompt = llm.tokenizer.encode(_PROMPT)
            for batch in scale.batches:
                rows.append(_step_row(method.name, llm, [prompt] * batch, scale.tokens))
                _check_text(rows, batch)
    return [{key: row[key] for key in row if key != "text"} for row in rows]


def _step_row(name: str, llm: LLM, prompts: Sequence[list[int]], tokens: int) -> dict[str, Any]:
    """A generation of that many requests, behind one that warms up; ms are of a mean step."""
    rival, params = Rival(name, llm), SamplingParams(max_tokens=tokens, ignore_eos=True)
    rival.run(prompts, params)
    before = llm.get_metrics()
    rival.run(prompts, params)
    after = llm.get_metrics()
    grown = {key: after[key] - before[key] for key in after if isinstance(after[key], int | float)}
    count = max(grown["num_verify_steps"], 1)
    return {
        "method": name,
        "batch": len(prompts),
        "tokens/s": len(prompts) * tokens / rival.seconds[-1],
        "tokens a step": tokens / count,
        "step ms": grown["verify_ms"] / count,
        "target ms": grown["verify_target_ms"] / count,
        "draft ms": grown["verify_draft_ms"] / count,
        "host ms": grown["verify_host_ms"] / count,
        "text": rival.tokens[0],
    }


def _check_text(rows: list[dict[str, Any]], batch: int) -> None:
    """PartFailed if the last row's text parts early from that of no speculation; in 16 bits it may
    part where two tokens are as likely."""
    last, first = rows[-1], next(row for row in rows if row["batch"] == batch)
    pairs = zip(last["text"], first["text"], strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    last["same tokens"] = same
    if not same:
        raise PartFailed(f"{last['method']} begins with another token than no speculation does")
