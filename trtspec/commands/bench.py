"""trtspec-bench: methods side by side, other engines, single engine calls, acceptance over data,
accuracy of weights, data sets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.report.result_file import check_output, make_result, save
from trtspec.bench.runs.acceptance import measure
from trtspec.builder.locate import find_model
from trtspec.commands.bench_accuracy import add_accuracy_command
from trtspec.commands.bench_compare import add_compare_command
from trtspec.commands.bench_forward import add_forward_command
from trtspec.commands.bench_peers import add_peers_command
from trtspec.commands.bench_prepare import add_prepare_command
from trtspec.commands.bench_prompts import (
    ENGINE_OPTIONS,
    PromptSource,
    add_engine_flags,
    add_prompt_flags,
    add_text_flags,
)
from trtspec.commands.json_flag import read_json
from trtspec.commands.program_parser import program_parser
from trtspec.config.decoding import DecodingConfig
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import is_engine_folder
from trtspec.errors import ConfigError, TrtspecError
from trtspec.llmapi import help_texts
from trtspec.llmapi.llm import LLM
from trtspec.log import log_to_stderr
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict

FORMAT, FORMAT_VERSION = "trtspec-bench acceptance", 1
DRAFT_FLAGS = {
    "method": "method",
    "draft": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "topk": "topk",
    "num_draft_tokens": "num_draft_tokens",
    "speculative_adaptive": "adaptive",
}
"""Flags of a speculative method, and the keys of a speculative config that they set."""


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser("trtspec-bench", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    acceptance = commands.add_parser(
        "acceptance", help="how many draft tokens a speculative method gets accepted, offline"
    )
    acceptance.set_defaults(run=run_acceptance)
    add = acceptance.add_argument
    add("--model", default="trtspec-tiny", help="target: HF folder or id, embedded name, engine")
    add("--method", help=help_texts.method())
    add("--draft", help="draft: HF folder or id, or an embedded name")
    add("--num_speculative_tokens", type=int, help="K of a chain, depth D of a tree")
    add("--topk", type=int, help="k of a tree (k, D, N)")
    add("--num_draft_tokens", type=int, help="N of a tree: rows verified, the root included")
    add(
        "--speculative_adaptive",
        action="store_true",
        default=None,
        help="verify as many drafts as pay in each step, by measured times and acceptance",
    )
    add(
        "--speculative_config",
        "--speculative-config",
        help='all of these as JSON: {"method": ..., "num_speculative_tokens": ..., ...}',
    )
    add("--temperature", type=float, default=0.0)
    add("--batch_size", type=int, default=1)
    add_prompt_flags(acceptance, max_tokens=256)
    add_text_flags(acceptance)
    add_engine_flags(acceptance)
    add("--output", type=Path, help="write everything measured to this file, as JSON")

    add_accuracy_command(commands)
    add_compare_command(commands)
    add_forward_command(commands)
    add_peers_command(commands)
    add_prepare_command(commands)
    return parser


def speculation(args: argparse.Namespace) -> DecodingConfig | bool | None:
    """The speculative config that the flags describe, as `LLM` takes it: False for the method none.

    Raises:
        ConfigError: no method, two ways of naming one, or invalid JSON.
    """
    flags = {flag: getattr(args, flag) for flag in DRAFT_FLAGS}
    given: dict[str, Any] = {
        DRAFT_FLAGS[f]: value for f, value in flags.items() if value is not None
    }
    if args.speculative_config is not None:
        if given:
            raise ConfigError(
                f"--speculative_config holds the whole method; leave out {', '.join(given)}"
            )
        config = read_json(args.speculative_config, "--speculative_config")
        return parse_speculative_config(config) or False
    if given:
        return parse_speculative_config(given) or False
    if not is_engine_folder(find_model(args.model)):
        raise ConfigError(
            "no speculative method is named; give --method, --draft or --speculative_config"
        )
    return None  # the engine's own


def run_acceptance(args: argparse.Namespace) -> None:
    wanted = speculation(args)
    if args.batch_size < 1:
        raise ConfigError(f"--batch_size {args.batch_size} must be at least 1")
    if args.output is not None:
        check_output(args.output)
    source = PromptSource(args)
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
    )
    options = {name: getattr(args, name) for name in ENGINE_OPTIONS}
    with LLM(
        args.model, wanted, dtype=args.dtype, max_batch_size=args.batch_size, **options
    ) as llm:
        prompts = source.encode(llm.tokenizer)
        report = measure(llm, prompts, params)
    print(
        f"{args.model}: {len(prompts)} prompts of {args.dataset}, up to {args.max_tokens} new "
        f"tokens, batch {args.batch_size}, temperature {args.temperature}, seed {args.seed}"
    )
    config = wanted if isinstance(wanted, DecodingConfig) else None
    if config is not None:
        print(f"speculation {json.dumps(speculative_to_dict(config))}")
    print(report.describe())
    for prompt, error in report.failures:
        print(f"trtspec-bench: prompt {prompt.question.id} failed: {error}", file=sys.stderr)
    if args.output is not None:
        names = ("model", "dataset", "max_tokens", "temperature", "batch_size", "seed", "dtype")
        settings = {name: getattr(args, name) for name in names}
        settings["speculative_config"] = speculative_to_dict(config) if config else None
        body = {**settings, **report.to_dict()}
        save(args.output, make_result(FORMAT, FORMAT_VERSION, args.argv, ("torch",), body))


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    args.argv = list(argv)
    log_to_stderr(repeats=False)  # models are opened anew for every round: the plan stays the same
    try:
        code: int | None = args.run(args)
    except TrtspecError as error:
        print(f"trtspec-bench: {error}", file=sys.stderr)
        return 1
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
