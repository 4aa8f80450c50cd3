"""The checks of a target, and of a draft for it, before either is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.bench.doctor.agreement import measure_agreement
from trtspec.bench.doctor.check import OK, PROBLEM, WARNING, Check
from trtspec.bench.doctor.cost import StepCosts
from trtspec.bench.runs.forward import ROLLOUT, VERIFY, CallShape, ForwardBench
from trtspec.bench.runs.methods import BenchMethod
from trtspec.builder.draft_weights import require_weights
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.builder.tokenizer import has_tokenizer, tokenizer_folder
from trtspec.config.build_config import BuildConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.sampling import SamplingParams
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import TOKENIZER_FOLDER, EngineConfig, is_engine_folder
from trtspec.engine.graphs import draft_shape
from trtspec.errors import TrtspecError
from trtspec.llmapi.engine_drafts import find_drafts
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.speculative.alarm import HEAVY, LIGHTER, LOW
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT
from trtspec.speculative.options import speculative_to_dict

NO_AGREEMENT = 0.1
"""Top-1 agreement below which a draft does not know its target; below `LOW` it hardly pays."""
WORTH_TELLING = 1.05
TEMPERATURES = (0.0, 1.0)
SECONDS = 0.3


def model_checks(
    model: str, build: BuildConfig, tokenizer: str | None = None
) -> tuple[list[Check], int]:
    """Whether a target can be built or loaded, its tokenizer or the given one, and the bytes of its
    weights."""
    try:
        folder = find_model(model)
        if is_engine_folder(folder):
            engine = EngineConfig.read(folder)
            own = folder / TOKENIZER_FOLDER
            spoken = own if tokenizer is None else tokenizer_folder(tokenizer)
        else:
            # The tokenizer is checked for itself.
            plan = plan_build(folder, build, skip_tokenizer_init=True, tokenizer=tokenizer)
            engine, spoken = plan.engine, plan.tokenizer_dir
    except TrtspecError as error:
        return [Check("target", PROBLEM, str(error))], 0
    size, formats = engine.weight_bytes(), engine.formats_of()
    kind = formats.name if formats.is_rounded else engine.build.dtype
    step = engine.pass_bytes().expected(1)
    detail = f"{engine.target.describe()}; {step / 1e9:.2f} GB of {kind} a step"
    return [Check("target", OK, detail), tokenizer_check(spoken)], size


def tokenizer_check(folder: Path) -> Check:
    """Whether texts, and conversations, can be served."""
    if not has_tokenizer(folder):
        remedy = (
            "copy its tokenizer.json there, or name one by --tokenizer; without, only token ids "
            "can be served"
        )
        return Check("tokenizer", WARNING, f"{folder} holds none", remedy)
    try:
        tokenizer = load_tokenizer(folder)
    except TrtspecError as error:
        return Check("tokenizer", PROBLEM, str(error))
    detail = f"{type(tokenizer).__name__}, {len(tokenizer)} tokens"
    if not getattr(tokenizer, "chat_template", None):
        return Check(
            "tokenizer", WARNING, f"{detail}, no chat template", "conversations will be refused: "
            "add a chat_template to tokenizer_config.json",
        )  # fmt: skip
    return Check("tokenizer", OK, detail)


def contract_check(
    model: str, method: BenchMethod, build: BuildConfig, tokenizer: str | None = None
) -> Check:
    """Whether a draft fits its target: kind, sizes, tokenizer, tree; and whether its weights can
    draft at all. Nothing is built."""
    name = f"{method.name}: contract"
    folder = find_model(model)
    try:
        if is_engine_folder(folder):
            engine = EngineConfig.read(folder)
            drafts = find_drafts(engine, method.config, TargetDrafts(engine.target))
            built = ["the engine was built with this draft"]
        else:
            plan = plan_build(folder, build, method.config, tokenizer=tokenizer)
            engine, drafts = plan.engine, plan.engine.drafts
            for found in plan.drafts:
                require_weights(found, plan.target_dir)
            assert drafts, "a method with a draft"
            built = []
        weights = [_weight(engine, draft) for draft in drafts]
    except TrtspecError as error:
        return Check(name, PROBLEM, str(error))
    doubts = [doubt for draft in drafts for doubt in draft.doubts]
    remedies = []
    if doubts:
        remedies.append(
            "look at the agreement below it; where that is low, get the draft again, or train one "
            "for this target (trtspec-train)"
        )
    if any(weight.is_heavy for weight in weights):
        remedies.append(
            f"a drafted token reads more than {HEAVY:.0%} of what a step does, so it pays only "
            f"where most are accepted: {LIGHTER}; the expected speed-up tells"
        )
    detail = "; ".join((*built, *(weight.describe() for weight in weights), *doubts))
    return Check(name, WARNING if remedies else OK, detail, "; ".join(remedies))


@dataclass(frozen=True)
class _Weight:
    """What a draft reads, relative to a target's step: in one pass, and for each token of a
    chain."""

    network: str
    a_pass: float
    a_token: float

    @property
    def is_heavy(self) -> bool:
        return self.a_token > HEAVY

    def describe(self) -> str:
        return f"{self.network}; a pass reads {self.a_pass:.0%} of a target step"


def _weight(engine: EngineConfig, draft: EngineDraft) -> _Weight:
    share = engine.pass_bytes(draft).expected(1) / engine.pass_bytes().expected(1)
    passes = {graph.name: graph.passes for graph in draft_shape(engine, draft).graphs}
    steps = draft.speculation.num_steps
    a_token = share * passes.get(DRAFT_ROLLOUT, steps) / steps
    return _Weight(draft.network.describe(), share, a_token)


@dataclass(frozen=True)
class PairFigures:
    """The measurements of a pair. agreement: by temperature, under the names of
    `trtspec.executor.metrics`, as if every agreeing draft were accepted."""

    method: BenchMethod
    agreement: Mapping[float, Mapping[str, Any]]
    costs: StepCosts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        assert self.method.config is not None
        return {
            "name": self.method.name,
            "speculative_config": speculative_to_dict(self.method.config),
            "agreement": {f"{t:g}": dict(figures) for t, figures in self.agreement.items()},
            "costs": self.costs.to_dict(),
            "expected_speed_up": {
                f"{t:g}": self.costs.speed_up(figures["acceptance_length"])
                for t, figures in self.agreement.items()
            },
        }


def measure_pair(
    folder: Path, method: BenchMethod, prompts: Sequence[Sequence[int]], max_tokens: int
) -> PairFigures:
    """Agreement at each of `TEMPERATURES`, and what calls take; ``folder``: of the built engine."""
    assert method.config is not None
    agreement = {
        temperature: measure_agreement(
            folder,
            method.config,
            prompts,
            SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True),
        ).to_dict()
        for temperature in TEMPERATURES
    }
    context = max(map(len, prompts)) + max_tokens // 2
    return PairFigures(method, agreement, measure_costs(folder, method.config, context))


def measure_costs(folder: Path, config: DecodingConfig, context: int) -> StepCosts:
    """For one request with that much context."""
    rows = config.num_rows
    shapes = [
        CallShape(VERIFY, 1, 1, context),
        CallShape(VERIFY, rows, 1, context),
        CallShape(ROLLOUT, 2, 1, context),
    ]
    bench = ForwardBench(folder, config, shapes)
    one, verify, draft = (
        sum(time.seconds * 1e3 for time in bench.measure(shape, SECONDS)) for shape in shapes
    )
    return StepCosts(one, verify, draft, rows, config.max_draft_len)


def figure_checks(figures: PairFigures) -> list[Check]:
    """What the figures of a pair mean, and what to change."""
    checks = []
    name, costs = figures.method.name, figures.costs
    is_chain = costs.rows == costs.depth + 1
    for temperature, found in figures.agreement.items():
        rates = found["acceptance_rate_per_pos"]
        shown = " ".join(f"{rate:.2f}" for rate in rates) or "none"
        is_top1 = is_chain and temperature == 0
        kind = "top-1 agreement" if is_top1 else f"agreement at temperature {temperature:g}"
        detail = f"{shown} by position, acceptance length {found['acceptance_length']:.2f}"
        checks.append(_agreement_check(f"{name}: {kind}", detail, rates))
    greedy = figures.agreement[0.0]
    gain = costs.speed_up(greedy["acceptance_length"])
    best, best_gain = costs.best_length(greedy["acceptance_rate_per_pos"])
    remedy = ""
    if is_chain and best != costs.depth and best_gain > WORTH_TELLING * max(gain, 1.0):
        remedy = f"num_speculative_tokens={best} should give {best_gain:.2f} x"
    elif gain < 1.0:
        remedy = "serve without this draft: it costs more than it gains here"
    detail = (
        f"{gain:.2f} x at temperature 0: verifying {costs.rows} rows takes {costs.verify_ms:.2f} "
        f"ms, 1 row {costs.one_row_ms:.2f} ms, drafting {costs.draft_ms:.2f} ms"
    )
    status = OK if gain >= 1.0 else WARNING
    checks.append(Check(f"{name}: expected speed-up", status, detail, remedy))
    return checks


def _agreement_check(name: str, detail: str, rates: Sequence[float]) -> Check:
    first = rates[0] if rates else 0.0
    if first < NO_AGREEMENT:
        return Check(
            name, PROBLEM, detail, "this draft does not know its target: check that it was trained "
            "for this very model (and this version of it), and with these hidden layers",
        )  # fmt: skip
    if first < LOW:
        return Check(
            name, WARNING, detail, "low for a draft: was it trained for this model, and on text "
            "like these prompts (--dataset)?",
        )  # fmt: skip
    return Check(name, OK, detail)
