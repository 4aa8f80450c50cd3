"""Flags for which methods run on which models, and under what load; for benchmarks that compare."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trtspec.bench.report.result_file import check_output
from trtspec.bench.runs.methods import BenchMethod, fitting_methods, read_methods
from trtspec.builder.available_drafts import FoundDraft
from trtspec.commands.bench_prompts import ENGINE_OPTIONS
from trtspec.config.sampling import SamplingParams
from trtspec.errors import ConfigError
from trtspec.llmapi.engines import build


def add_method_flags(parser: argparse.ArgumentParser) -> None:
    """Model, drafts, methods, batch sizes, temperatures, rounds and result file."""
    add = parser.add_argument
    add("--model", default="trtspec-tiny", help="target: HF folder or id, embedded name, engine")
    add(
        "--drafts",
        nargs="*",
        default=[],
        help="drafts: HF folders or ids, or embedded names, of any kind (default: those embedded "
        "for the model, or its own modules)",
    )
    add(
        "--methods",
        nargs="*",
        help="method:K for a chain, method:k,D,N for a tree, such as eagle3:5 eagle3:4,5,24 "
        "ngram:4, +adaptive behind either, auto or auto:method with the draft for one, or JSON of "
        "a speculative config (default: every method that fits)",
    )
    add("--batch_sizes", type=int, nargs="+", default=[1], help="requests at a time (default: 1)")
    add("--temperatures", type=float, nargs="+", default=[0.0], help="default: 0")
    add("--rounds", type=int, default=3, help="over all prompts, of each method (default: 3)")
    add("--output", type=Path, help="write everything measured to this file, as JSON")


def check_method_flags(args: argparse.Namespace) -> None:
    """Raise ConfigError for mistakes that can be detected before anything is built."""
    for name in ("batch_sizes", "rounds"):
        given = getattr(args, name)
        for value in given if isinstance(given, list) else [given]:
            if value < 1:
                raise ConfigError(f"--{name} {value} must be at least 1")
    for temperature in args.temperatures:
        SamplingParams(temperature=temperature)  # refuses what cannot be
    if args.output is not None:
        check_output(args.output)


def build_methods(
    args: argparse.Namespace, drafts: list[FoundDraft], make: Callable[..., Path] = build
) -> tuple[list[BenchMethod], dict[str, Path], dict[str, str]]:
    """The requested methods, otherwise all that fit; the engine folder of each by name; and why
    others are left out. ``make``: see `engine_maker`."""
    # Nothing may be left out of what was asked for.
    is_given = args.methods is not None
    methods = read_methods(args.methods, drafts) if is_given else fitting_methods(drafts)
    options: Mapping[str, Any] = {
        "dtype": args.dtype,
        "max_batch_size": max(args.batch_sizes),
        **{name: getattr(args, name) for name in ENGINE_OPTIONS},
    }
    built: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for method in methods:
        try:
            built[method.name] = make(args.model, method.config, **options)
        except ConfigError as error:
            if method.config is None or is_given:
                raise
            left_out[method.name] = str(error)
            print(f"{method.name} is left out: {error}")
    return [method for method in methods if method.name in built], built, left_out
