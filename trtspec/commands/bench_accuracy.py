"""trtspec-bench accuracy: how far a model is from the floats that its weights stand for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from trtspec.bench.peers.logits import peer_log_probabilities
from trtspec.bench.report.result_file import check_output, make_result, save
from trtspec.bench.runs.divergence import (
    WINDOW,
    Divergence,
    exact_build,
    log_probabilities_of,
)
from trtspec.builder.locate import find_model
from trtspec.builder.tokenizer import read_tokenizer
from trtspec.commands.weight_flags import add_weight_flags
from trtspec.config.build_config import WEIGHT_OPTIONS, BuildConfig
from trtspec.errors import ConfigError
from trtspec.llmapi import help_texts

FORMAT, FORMAT_VERSION = "trtspec-bench accuracy", 1
DESCRIPTION = f"""Reads a text, in windows of {WINDOW} tokens, with the model as the flags build it
and with the floats that its checkpoint's weights stand for, in float32, and compares the
probabilities of the next token behind each position: the mean KL divergence in nats, how often the
most probable token is the same, and the positions that are furthest. All is deterministic. The
modules run that engines are compiled from.
"""


def add_accuracy_command(commands: Any) -> None:
    """Add it to the subparsers of `trtspec-bench`."""
    accuracy = commands.add_parser(
        "accuracy",
        help="how far quantised weights are from the floats that they stand for, over a text",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    accuracy.set_defaults(run=run_accuracy)
    add = accuracy.add_argument
    add("--model", required=True, help="folder, GGUF file or embedded name")
    add("--text", type=Path, required=True, help="file of plain text")
    add("--tokens", type=int, default=9 * WINDOW, help="its first ones (default: %(default)s)")
    add("--worst", type=int, default=5, help="positions to print (default: %(default)s)")
    add("--dtype", nargs="+", default=["auto"], help=help_texts.DTYPE + "; or several")
    add("--kv_cache_dtype", default="auto", help=help_texts.KV_CACHE_DTYPE)
    add_weight_flags(add)
    add("--llama_cpp", metavar="PYTHON", help="an interpreter with xllamacpp: compare llama.cpp "
        "over the same GGUF file, too")  # fmt: skip
    add("--output", type=Path, help="write everything measured to this file, as JSON")


def run_accuracy(args: argparse.Namespace) -> None:
    for name in ("tokens", "worst"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name} {getattr(args, name)} must be at least 1")
    if args.output is not None:
        check_output(args.output)
    given = {n: getattr(args, n) for n in WEIGHT_OPTIONS if getattr(args, n) is not None}
    given["kv_cache_dtype"] = args.kv_cache_dtype
    builds = {dtype: BuildConfig(dtype, **given) for dtype in args.dtype}
    model = Path(find_model(args.model))
    try:
        text = args.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {args.text}: {error}") from error
    ids = read_tokenizer(model)(text)["input_ids"][: args.tokens]
    if not ids:
        raise ConfigError(f"--text {args.text} holds no token")
    print(f"{args.model}: {len(ids)} tokens of {args.text.name} in windows of {WINDOW}")
    _, exact = log_probabilities_of(model, exact_build(), ids)
    rows = []

    def tell(engine: str, method: str, how: str, log_probabilities: Sequence[Tensor]) -> None:
        found = Divergence.of(exact, log_probabilities)
        _print(how, found, args.worst)
        rows.append({"engine": engine, "method": method, "how": how, **found.to_dict(args.worst)})

    for dtype, build in builds.items():
        tell("trtspec", dtype, *log_probabilities_of(model, build, ids))
    if args.llama_cpp is not None:
        theirs = peer_log_probabilities(args.llama_cpp, model, ids, exact[0].shape[1])
        tell("llama.cpp", "usual", "llama.cpp", theirs)
    if args.output is not None:
        common = {"model": args.model, "text": args.text.name, "tokens": len(ids)}
        body = {"common": common, "rows": rows}
        save(args.output, make_result(FORMAT, FORMAT_VERSION, args.argv, ("torch",), body))


def _print(how: str, found: Divergence, worst: int) -> None:
    each = ", ".join(f"{place} ({nats:.3g})" for place, nats in found.worst(worst))
    print(
        f"{how}\n  KL divergence {found.nats.mean():.3e} nats a token (median "
        f"{found.nats.median():.2e}), the same most probable token at "
        f"{found.agrees.double().mean():.2%}\n  furthest: {each}",
        flush=True,
    )
