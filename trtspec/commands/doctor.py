"""trtspec-doctor: checks a machine and, if asked, a target and drafts for it, before anything is
served, and says what to change. Exit status 1: something will not work.

For each draft: does it fit (kind, sizes, tokenizer), how often does it say what the target says
next (teacher-forced over the target's own text, position by position, at temperature 0 and 1), and
which speed-up that makes at the times measured here. The engine is built for it as for serving.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from trtspec.bench.doctor.check import PROBLEM, Check, describe, has_problem
from trtspec.bench.doctor.machine_checks import bandwidth_check, machine_checks
from trtspec.bench.doctor.pair_checks import (
    PairFigures,
    contract_check,
    figure_checks,
    measure_pair,
    model_checks,
)
from trtspec.bench.gpu_bringup.bring_up import bring_up
from trtspec.bench.gpu_bringup.journal import OK, SKIPPED
from trtspec.bench.gpu_bringup.parts import PARTS, SHORT
from trtspec.bench.gpu_bringup.report import JSON_NAME, PAGE_NAME
from trtspec.bench.report.floor import measure_machine
from trtspec.bench.report.result_file import make_result
from trtspec.bench.runs.methods import BenchMethod, read_methods, usual_methods
from trtspec.builder.available_drafts import available_drafts
from trtspec.commands.bench_prompts import (
    ENGINE_OPTIONS,
    PromptSource,
    add_engine_flags,
    add_prompt_flags,
)
from trtspec.commands.program_parser import program_parser
from trtspec.config.build_config import BuildConfig
from trtspec.config.tree_decoding import with_networks
from trtspec.engine.folder import TOKENIZER_FOLDER
from trtspec.errors import ConfigError, TrtspecError
from trtspec.llmapi import help_texts
from trtspec.llmapi.engines import build
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.log import log_to_stderr

FORMAT, FORMAT_VERSION = "trtspec-doctor", 1
GPU_SECONDS = 180


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "trtspec-doctor", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", help="target to check: HF folder or id, embedded name, engine")
    add(
        "--draft",
        nargs="+",
        default=[],
        help="drafts to check (default: those embedded for the model, its own, the engine's)",
    )
    add("--tokenizer", help=help_texts.TOKENIZER)
    add("--methods", nargs="+", help="how to draft: eagle3:5, eagle3:4,5,24 or JSON")
    add("--no_measure", action="store_true", help="nothing that takes time: no speed, no agreement")
    add(
        "--gpu",
        action="store_true",
        help="measure the kernels on the GPU, and nothing else (all there is, from a source tree: "
        "python -m trtspec.bench.gpu_bringup)",
    )
    add("--json", action="store_true", help="print JSON in place of text")
    add_prompt_flags(parser, max_tokens=48, num_prompts=8)
    add_engine_flags(parser)
    return parser


def examine(args: argparse.Namespace) -> tuple[list[Check], list[PairFigures]]:
    """Run all checks that the flags ask for; returns them and the figures of each pair."""
    if args.model is None and (args.draft or args.methods or args.tokenizer):
        raise ConfigError("--draft, --methods and --tokenizer need a --model to check them with")
    source = PromptSource(args)
    given = {name: getattr(args, name) for name in ENGINE_OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    config = BuildConfig(dtype=args.dtype, max_batch_size=1, **options)
    model: list[Check] = []
    size = 0
    if args.model is not None:
        model, size = model_checks(args.model, config, args.tokenizer)
    checks = machine_checks(size)
    if not args.no_measure:
        dtype = "bfloat16" if config.dtype == "auto" else config.dtype
        checks.append(bandwidth_check(measure_machine("cpu", dtype)))
    checks += model
    if args.model is None or has_problem(model):
        return checks, []
    try:
        methods = _methods(args)
    except TrtspecError as error:
        return [*checks, Check("draft", PROBLEM, str(error))], []
    figures: list[PairFigures] = []
    for method in methods:
        contract = contract_check(args.model, method, config, args.tokenizer)
        checks.append(contract)
        if args.no_measure or has_problem([contract]):
            continue
        figures.append(_measure(args, source, method, options))
        checks += figure_checks(figures[-1])
    return checks, figures


def _methods(args: argparse.Namespace) -> list[BenchMethod]:
    """The methods to check: those given, otherwise the usual ones with a draft network."""
    drafts = available_drafts(args.model, args.draft)
    if args.methods is None:
        return usual_methods(drafts)
    methods = read_methods(args.methods, drafts)[1:]
    for method in methods:
        if not with_networks(method.config):
            raise ConfigError(
                f"{method.name} drafts without a network, so there is no pair to check; "
                "trtspec-bench compare shows what it gains"
            )
    return methods


def _measure(
    args: argparse.Namespace, source: PromptSource, method: BenchMethod, options: dict[str, Any]
) -> PairFigures:
    options = {**options, "dtype": args.dtype, "tokenizer": args.tokenizer}
    folder = build(args.model, method.config, max_batch_size=1, **options)
    prompts = [p.token_ids for p in source.encode(load_tokenizer(folder / TOKENIZER_FOLDER))]
    return measure_pair(folder, method, prompts, args.max_tokens)


def check_gpu(as_json: bool) -> int:
    """Run the parts of a bring-up that need no source tree. Exit status 1: one found a problem."""
    parts = [part for part in PARTS if part.name in SHORT]
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        results = bring_up(Path(folder), parts, GPU_SECONDS)
        text = (Path(folder) / (JSON_NAME if as_json else PAGE_NAME)).read_text()
    print(text, end="")
    return 1 if any(result.status not in (OK, SKIPPED) for result in results.values()) else 0


def report(
    args: argparse.Namespace, checks: Sequence[Check], figures: Sequence[PairFigures]
) -> dict[str, Any]:
    """Everything as plain JSON values."""
    body = {
        "is_well": not has_problem(checks),
        "checks": [check.to_dict() for check in checks],
        "pairs": [pair.to_dict() for pair in figures],
    }
    return make_result(FORMAT, FORMAT_VERSION, args.argv, ("torch", "transformers"), body)


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    args.argv = list(argv)
    log_to_stderr("WARNING" if args.json else "INFO")
    if args.gpu:
        return check_gpu(args.json)
    try:
        checks, figures = examine(args)
    except TrtspecError as error:
        print(f"trtspec-doctor: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(report(args, checks, figures), indent=1))
    else:
        print(describe(checks))
    return 1 if has_problem(checks) else 0


if __name__ == "__main__":
    sys.exit(main())
