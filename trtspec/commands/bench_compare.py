"""trtspec-bench compare: what speculation gains, on this machine, with this model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.bench.data.dataset import BenchPrompt
from trtspec.bench.report.floor import MachineRates, MemorySpeed, measure_machine
from trtspec.bench.report.picture import check_picture
from trtspec.bench.report.result_file import save
from trtspec.bench.runs.by_category import by_category, print_categories
from trtspec.bench.runs.compare import Entrant, run_rounds, set_floor, summarize
from trtspec.bench.runs.compare_report import __doc__ as REPORT
from trtspec.bench.runs.compare_report import broken_promises, make_report, plot, print_point
from trtspec.bench.runs.interleaving import fit_together
from trtspec.bench.runs.methods import BenchMethod
from trtspec.bench.synthetic.engine import open_llm
from trtspec.bench.synthetic_flag import add_synthetic_flag, engine_maker
from trtspec.builder.available_drafts import available_drafts
from trtspec.commands.bench_methods import (
    add_method_flags,
    build_methods,
    check_method_flags,
)
from trtspec.commands.bench_prompts import (
    SETTINGS,
    PromptSource,
    add_engine_flags,
    add_prompt_flags,
    add_text_flags,
)
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import TOKENIZER_FOLDER, EngineConfig
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.prompts import load_tokenizer

EXACT_DTYPE = "float32"
"""In other dtypes a batch of rows may round differently from a single row."""


def add_compare_command(commands: Any) -> None:
    """Add the command to the subparsers of `trtspec-bench`."""
    compare = commands.add_parser(
        "compare",
        help="no speculation and every method that fits, side by side: speed-up, acceptance, time "
        "of a step, share of the memory floor",
        description=REPORT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.set_defaults(run=run_compare)
    add = compare.add_argument
    add_method_flags(compare)
    add_synthetic_flag(compare)
    add_prompt_flags(compare, max_tokens=128)
    add_text_flags(compare)
    add_engine_flags(compare)
    add("--plot", type=Path, help="draw speed-ups and steps into this file (.png, .svg, .pdf)")


def run_compare(args: argparse.Namespace) -> int:
    source = _check(args)
    drafts = available_drafts(args.model, args.drafts)
    methods, built, left_out = build_methods(args, drafts, engine_maker(args))
    engine = EngineConfig.read(built[methods[0].name])
    prompts = source.encode(load_tokenizer(built[methods[0].name] / TOKENIZER_FOLDER))
    texts = [prompt.token_ids for prompt in prompts]
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["num_prompts"] = len(texts)
    settings["mean_prompt_tokens"] = sum(map(len, texts)) / len(texts)
    rates = measure_machine(engine.build.device, engine.build.dtype)
    print(rates.describe())
    speed = MemorySpeed(engine.build.device)
    folders = [built[method.name] for method in methods]
    if engine.build.device == "cpu":
        folders = list(set(folders))  # engines of a folder share their weights
    fit = fit_together(sum(map(_weight_bytes, folders)), engine.build.device)

    points: list[dict[str, Any]] = []
    for batch_size in args.batch_sizes:
        for temperature in args.temperatures:
            contenders = [
                Entrant(method, partial(_open, method, built[method.name], batch_size))
                for method in methods
            ]
            size = batch_size if fit else None
            points.append(
                _measure(args, contenders, prompts, batch_size, temperature, rates, speed, size)
            )
            rates = rates.with_bandwidth(speed.best)
            for point in points:
                for figures in point["methods"]:
                    set_floor(figures, rates)
            print_point(points[-1])
            print_categories(points[-1]["methods"])
            if args.output is not None:  # at once: a later point may never come
                report = make_report(
                    args.argv,
                    args.model,
                    engine.build.to_dict(),
                    settings,
                    rates,
                    args.rounds,
                    left_out,
                    points,
                )
                save(args.output, report)
    if args.plot is not None:
        plot(points, args.plot)
    broken = broken_promises(points)
    for line in broken:
        print(f"trtspec-bench: {line}", file=sys.stderr)
    return 1 if broken else 0


def _check(args: argparse.Namespace) -> PromptSource:
    """Check everything that can be checked before anything is built; ConfigError names the
    problem."""
    check_method_flags(args)
    engine_maker(args)
    if args.plot is not None:
        check_picture(args.plot)
    return PromptSource(args)


def _weight_bytes(folder: Path) -> int:
    engine = EngineConfig.read(folder)
    return engine.weight_bytes() + sum(map(engine.weight_bytes, engine.drafts))


def _open(method: BenchMethod, folder: Path, batch_size: int) -> LLM:
    return open_llm(
        folder,
        method.config or False,
        max_batch_size=batch_size,
        kv_cache_config={"enable_block_reuse": False},  # every round prefills anew
    )


def _measure(
    args: argparse.Namespace,
    contenders: Sequence[Entrant],
    prompts: Sequence[BenchPrompt],
    batch_size: int,
    temperature: float,
    rates: MachineRates,
    speed: MemorySpeed,
    turn_size: int | None,
) -> dict[str, Any]:
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=temperature,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
    )
    texts = [prompt.token_ids for prompt in prompts]
    run_rounds(contenders, texts, params, args.rounds, speed.sample, turn_size)
    exact = rates.dtype == EXACT_DTYPE
    baseline = contenders[0].rounds
    categories = [prompt.question.category for prompt in prompts]
    return {
        "batch_size": batch_size,
        "temperature": temperature,
        "methods": [
            {
                **summarize(c.method, c.rounds, baseline, rates, exact),
                "categories": by_category(categories, c.rounds, baseline),
            }
            for c in contenders
        ],
    }
