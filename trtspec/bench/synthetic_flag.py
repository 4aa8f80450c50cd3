"""The flag --synthetic of benchmarks, and how their engines are built with it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from trtspec.bench.synthetic.engine import synthetic_engine
from trtspec.bench.synthetic.sizes import SIZES, Sizes
from trtspec.config.strict import from_dict
from trtspec.errors import ConfigError
from trtspec.llmapi.engines import build


def add_synthetic_flag(parser: argparse.ArgumentParser) -> None:
    """For benchmarks of engines, which build them by `engine_maker`."""
    parser.add_argument(
        "--synthetic",
        help=f"the cost of a larger model with the text of --model: {', '.join(SIZES)}, or JSON of "
        f"{', '.join(field.name for field in fields(Sizes))}; dense targets and heads such as "
        "EAGLE-3's",
    )


def engine_maker(args: argparse.Namespace) -> Callable[..., Path]:
    """`build`, or its replacement according to the flag; ConfigError for invalid sizes."""
    if args.synthetic is None:
        return build
    sizes = read_sizes(args.synthetic)
    return lambda model, config, **options: synthetic_engine(model, sizes, config, **options)


def read_sizes(text: str) -> Sizes:
    """Sizes by name, or as a JSON object; ConfigError for what is neither."""
    if text in SIZES:
        return SIZES[text]
    try:
        return from_dict(Sizes, json.loads(text))
    except ValueError as error:
        raise ConfigError(
            f"sizes {text!r} are neither one of {', '.join(SIZES)} nor a JSON object ({error})"
        ) from error
