"""trtspec-bench serve, compare-serve and plot-serve: load on an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trtspec.bench.dataset import STDLIB, read_questions
from trtspec.bench.picture import check_picture
from trtspec.bench.result_file import check_output, save
from trtspec.bench.serving.client import ServeClient, shown_url
from trtspec.bench.serving.compare import compare
from trtspec.bench.serving.load import CHAT_ENDPOINT, ENDPOINTS, LoadTest
from trtspec.bench.serving.plot import plot
from trtspec.bench.serving.prompts import RANDOM, PromptSets, choose_prompts
from trtspec.bench.serving.result import load_result, make_result
from trtspec.bench.serving.summary import __doc__ as DEFINITIONS
from trtspec.bench.serving.sweep import measure
from trtspec.bench.serving.table import point_table, sweep_table
from trtspec.errors import ConfigError

KEY_VARIABLE = "OPENAI_API_KEY"
INTERRUPTED = 130  # as a shell reports it


def add_serve_commands(commands: Any) -> None:
    """Add the three to the subparsers of `trtspec-bench`."""
    serve = commands.add_parser(
        "serve",
        help="load on an OpenAI-compatible server: throughput, TTFT, TPOT, ITL, acceptance",
        description=DEFINITIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.set_defaults(run=run_serve)

    def add(name: str, **options: Any) -> None:
        names = [name, name.replace("-", "_").replace("__", "--", 1)]
        serve.add_argument(*dict.fromkeys(names), **options)

    add("--base-url", default="http://127.0.0.1:8000", help="default: %(default)s")
    add(
        "--endpoint",
        default=ENDPOINTS[0],
        help=f"{ENDPOINTS[0]} (default) sends texts as they are, {CHAT_ENDPOINT} as a user's turn",
    )
    add("--model", help="default: the first one of /v1/models")
    add("--api-key", help=f"default: the environment's {KEY_VARIABLE}, if it has one")
    add(
        "--dataset",
        default=STDLIB,
        help="Spec-Bench or MT-Bench question.jsonl (its first turns), .jsonl of {prompt}, a text "
        f"file of one prompt a line, {STDLIB}: held-out code (default), {RANDOM}: made-up words",
    )
    add("--num-prompts", type=int, default=100, help="requests a point; 0: every prompt of a file")
    add(
        "--prompt-chars",
        type=int,
        default=512,
        help=f"characters of a prompt of {STDLIB} or {RANDOM} (default: %(default)s)",
    )
    add("--max-tokens", type=int, default=128, help="tokens to generate (default: %(default)s)")
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0, help="of arrivals, made-up prompts and sampling")
    add("--ignore-eos", action="store_true", help="always generate --max-tokens")
    add(
        "--request-rate",
        type=float,
        nargs="+",
        default=[math.inf],
        help="mean arrivals a second, a Poisson process; inf (default): all at once; several "
        "values are measured one after the other",
    )
    add(
        "--max-concurrency",
        type=int,
        nargs="+",
        help="requests under way at once; several values are measured one after the other",
    )
    add("--warmup", type=int, default=1, help="requests before the first point, not measured")
    add("--timeout", type=float, default=600.0, help="seconds after which a request has failed")
    add("--extra-body", help="JSON object of further fields of every request; null removes one")
    add("--output", type=Path, help="write everything measured to this file, as JSON")
    add("--plot", type=Path, help="draw latency against load into this file (.png, .svg, .pdf)")
    add("--no-progress", action="store_true", help="no progress bar")

    both = commands.add_parser("compare-serve", help="two result files of serve side by side")
    both.set_defaults(run=run_compare_serve)
    both.add_argument("results", nargs=2, type=Path, metavar="RESULT.json")
    both.add_argument("--force", action="store_true", help="though they measured different loads")

    drawn = commands.add_parser("plot-serve", help="latency against load of result files of serve")
    drawn.set_defaults(run=run_plot_serve)
    drawn.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    drawn.add_argument("--output", type=Path, required=True, help="a .png, .svg or .pdf file")
    drawn.add_argument("--labels", nargs="+", help="names of the lines (default: of the files)")


def read_load(args: argparse.Namespace) -> LoadTest:
    """The load that the flags describe; ConfigError for what cannot be."""
    extra: Any = {}
    if args.extra_body is not None:
        try:
            extra = json.loads(args.extra_body)
        except ValueError as error:
            raise ConfigError(f"--extra-body is not JSON: {error}") from error
        if not isinstance(extra, dict):
            raise ConfigError(f"--extra-body holds a {type(extra).__name__}; give a JSON object")
    count = args.num_prompts
    if count == 0:
        if args.dataset in (STDLIB, RANDOM):
            raise ConfigError(f"--num-prompts 0 needs a file; {args.dataset} has no end")
        count = len(read_questions(Path(args.dataset)))
    names = ("endpoint", "prompt_chars", "max_tokens", "temperature", "seed", "ignore_eos")
    return LoadTest(
        dataset=args.dataset,
        num_prompts=count,
        request_rates=tuple(args.request_rate),
        max_concurrencies=tuple(args.max_concurrency or (None,)),
        extra_body=extra,
        **{name: getattr(args, name) for name in names},
    )


def run_serve(args: argparse.Namespace) -> int:
    load = read_load(args)
    if args.warmup < 0:
        raise ConfigError(f"--warmup {args.warmup} must be 0 or more")
    if not (math.isfinite(args.timeout) and args.timeout > 0):
        raise ConfigError(f"--timeout {args.timeout} must be a number of seconds above 0")
    if args.output is not None:
        check_output(args.output)
    if args.plot is not None:
        check_picture(args.plot)
    key = args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE) or None
    prompts = choose_prompts(
        load.dataset, load.num_prompts, len(load.points), load.prompt_chars, load.seed
    )
    load = replace(load, dataset=Path(load.dataset).name)  # no paths in results
    try:
        return asyncio.run(_serve(args, load, prompts, key))
    except KeyboardInterrupt:  # before the first request, or a second time
        print("trtspec-bench: interrupted", file=sys.stderr)
        return INTERRUPTED


async def _serve(
    args: argparse.Namespace, load: LoadTest, prompts: PromptSets, key: str | None
) -> int:
    points: list[dict[str, Any]] = []
    async with ServeClient(args.base_url, key, args.timeout) as client:
        model = args.model or await client.first_model()
        server = {
            "url": shown_url(client.root),
            "model": model,
            "version": await client.version(),
        }
        print(
            f"{model} at {server['url']}{load.endpoint}: {load.num_prompts} prompts of "
            f"{load.dataset}, up to {load.max_tokens} new tokens, temperature {load.temperature}, "
            f"seed {load.seed}"
        )
        for note in prompts.notes:
            print(f"note: {note}")
        command = _command(args, key)

        def keep(point: dict[str, Any]) -> None:
            """Print and save at once: a later point may never come."""
            points.append(point)
            print(point_table(point), flush=True)
            if args.output is not None:
                save(args.output, make_result(load, points, server, command, prompts.notes))

        is_whole = await measure(
            client, load, prompts, model, args.warmup, keep, not args.no_progress
        )
    if len(points) > 1:
        print(sweep_table(points))
    if args.plot is not None and points:
        plot({str(model): points}, args.plot)
    if not is_whole:
        print("trtspec-bench: interrupted", file=sys.stderr)
        return INTERRUPTED
    if not any(point["completed"] for point in points):
        print("trtspec-bench: no request succeeded", file=sys.stderr)
        return 1
    return 0


def run_compare_serve(args: argparse.Namespace) -> None:
    a, b = (load_result(path) for path in args.results)
    print(compare(a, b, (str(args.results[0]), str(args.results[1])), args.force))


def run_plot_serve(args: argparse.Namespace) -> None:
    labels = args.labels or _labels(args.results)
    if len(labels) != len(args.results) or len(set(labels)) != len(labels):
        raise ConfigError(
            f"{len(args.results)} files need as many --labels, all different; "
            f"got {', '.join(labels)}"
        )
    check_picture(args.output)
    results = [load_result(path) for path in args.results]
    plot({name: r["points"] for name, r in zip(labels, results, strict=True)}, args.output)
    for name, result in zip(labels, results, strict=True):
        loads = {key: value for key, value in result["load"].items() if key != "extra_body"}
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in loads.items())}")
    print(f"wrote {args.output}")


def _labels(paths: Sequence[Path]) -> list[str]:
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(stems) else [str(path) for path in paths]


def _command(args: argparse.Namespace, key: str | None) -> str:
    """How the program was called, without the API key and a URL's password."""
    words = ["trtspec-bench", *args.argv]
    for secret in (key, urlsplit(args.base_url).password):
        if secret:
            words = [word.replace(secret, "***") for word in words]
    return shlex.join(words)
