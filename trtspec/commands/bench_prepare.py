"""trtspec-bench prepare-dataset: prompts as token ids, for trtspec_benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from trtspec.bench.data.dataset import (
    STDLIB,
    STDLIB_TOKENS,
    encode_questions,
    held_out_prompts,
    read_questions,
    spread,
)
from trtspec.bench.data.prepare_dataset import (
    Lengths,
    NormalLengths,
    Sample,
    UniformLengths,
    random_samples,
    text_samples,
    write_dataset,
)
from trtspec.bench.report.result_file import check_output
from trtspec.builder.locate import find_model
from trtspec.engine.folder import TOKENIZER_FOLDER, is_engine_folder
from trtspec.errors import ConfigError
from trtspec.llmapi.prompts import load_tokenizer

TEXT, NORMAL, UNIFORM = "text", "token-norm-dist", "token-unif-dist"
DEFAULT_MODEL = "trtspec-tiny"
DEFAULT_SAMPLES = 16
DEFAULT_OUTPUT_LEN = 128
OWN_FLAGS = {
    TEXT: ("dataset", "input_len", "output_len", "no_chat_template"),
    NORMAL: ("input_mean", "input_stdev", "output_mean", "output_stdev"),
    UNIFORM: ("input_min", "input_max", "output_min", "output_max"),
}
"""Flags that apply to one kind of prompts only."""


def add_prepare_command(commands: Any) -> None:
    """Add the command to the subparsers of `trtspec-bench`."""
    prepare = commands.add_parser(
        "prepare-dataset", help="prompts as token ids, for the C++ benchmark (trtspec_benchmark)"
    )
    prepare.set_defaults(run=run_prepare_dataset)

    def add(*names: str, **options: Any) -> None:
        spellings = [s for name in names for s in (name, name.replace("_", "-"))]
        prepare.add_argument(*dict.fromkeys(spellings), **options)

    prepare.add_argument(
        "kind",
        nargs="?",
        default=TEXT,
        choices=tuple(OWN_FLAGS),
        help=f"{TEXT} (default), or random tokens of normally or uniformly distributed lengths",
    )
    add("--output", type=Path, required=True, help=".json, or .jsonl for a sample a line")
    add("--model", help=f"whose tokenizer to use (default: {DEFAULT_MODEL}); also an engine folder")
    add("--tokenizer", help="the same, as TensorRT-LLM has it")
    add(
        "--num_samples",
        "--num_requests",
        type=int,
        default=DEFAULT_SAMPLES,
        help="default: %(default)s; of a file at even distances, 0: all",
    )
    add(
        "--dataset",
        help="Spec-Bench or MT-Bench question.jsonl (its first turns), .jsonl of {prompt}, a text "
        f"file of one prompt a line, or {STDLIB}: held-out code (default)",
    )
    add(
        "--input_len",
        type=int,
        help=f"tokens of a prompt: its length with {STDLIB} (default {STDLIB_TOKENS}), else where "
        "longer texts are cut (default: nowhere)",
    )
    add("--output_len", type=int, help=f"tokens to generate (default: {DEFAULT_OUTPUT_LEN})")
    add(
        "--no_chat_template",
        action="store_true",
        default=None,
        help="ask turns of conversations as bare text",
    )
    for side in ("input", "output"):
        add(f"--{side}_mean", type=float, help=f"{NORMAL}: mean {side} tokens")
        add(f"--{side}_stdev", type=float, help=f"{NORMAL}: their deviation (default: 0)")
        add(f"--{side}_min", type=int, help=f"{UNIFORM}: fewest {side} tokens")
        add(f"--{side}_max", type=int, help=f"{UNIFORM}: most {side} tokens")
    add("--seed", "--random_seed", type=int, default=0, help="of random tokens and lengths")


def run_prepare_dataset(args: argparse.Namespace) -> None:
    _check_flags(args)
    check_output(args.output)
    name = args.tokenizer or args.model or DEFAULT_MODEL
    folder = Path(find_model(name))
    tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER if is_engine_folder(folder) else folder)
    samples = _text(args, tokenizer) if args.kind == TEXT else _random(args, tokenizer)
    metadata = {
        "workload_type": args.kind,
        "dataset": args.dataset or STDLIB if args.kind == TEXT else None,
        "tokenizer": Path(name).name,
        "tokenize_vocabsize": len(tokenizer),
        "seed": args.seed,
    }
    write_dataset(args.output, samples, metadata)
    inputs = sum(len(sample.input_ids) for sample in samples)
    outputs = sum(sample.output_len for sample in samples)
    print(f"{args.output}: {len(samples)} samples, {inputs} input and {outputs} output tokens")


def _check_flags(args: argparse.Namespace) -> None:
    if args.tokenizer and args.model:
        raise ConfigError("--tokenizer and --model both name a tokenizer; give one of them")
    for kind, names in OWN_FLAGS.items():
        for name in names:
            if kind != args.kind and getattr(args, name) is not None:
                raise ConfigError(f"--{name} belongs to {kind}, not to {args.kind}; leave it out")
    least = 0 if args.kind == TEXT and (args.dataset or STDLIB) != STDLIB else 1
    for name, low in (("num_samples", least), ("input_len", 1), ("output_len", 1)):
        value = getattr(args, name)
        if value is not None and value < low:
            raise ConfigError(f"--{name} {value} must be at least {low}")


def _text(args: argparse.Namespace, tokenizer: Any) -> list[Sample]:
    output_len = args.output_len or DEFAULT_OUTPUT_LEN
    if (args.dataset or STDLIB) == STDLIB:
        length = args.input_len or STDLIB_TOKENS
        prompts = held_out_prompts(tokenizer, args.num_samples, length)
        if len(prompts) < args.num_samples:
            raise ConfigError(
                f"{STDLIB} has {len(prompts)} held-out texts of twice {length} tokens, not "
                f"{args.num_samples}; lower --num_samples or --input_len, or give a --dataset"
            )
    else:
        questions = spread(read_questions(Path(args.dataset)), args.num_samples or None)
        prompts = encode_questions(questions, tokenizer, args.input_len, not args.no_chat_template)
    return text_samples(prompts, output_len)


def _random(args: argparse.Namespace, tokenizer: Any) -> list[Sample]:
    inputs, outputs = _lengths(args, "input"), _lengths(args, "output")
    excluded = tokenizer.all_special_ids
    return random_samples(args.num_samples, inputs, outputs, len(tokenizer), excluded, args.seed)


def _lengths(args: argparse.Namespace, side: str) -> Lengths:
    """The length distribution that the flags for one side describe."""
    names = [name for name in OWN_FLAGS[args.kind] if name.startswith(side)]
    first, second = (getattr(args, name) for name in names)
    if first is None:
        raise ConfigError(f"{args.kind} needs --{names[0]}")
    if args.kind == NORMAL:
        return NormalLengths(first, second or 0.0)
    if second is None:
        raise ConfigError(f"{args.kind} needs --{names[1]}")
    return UniformLengths(first, second)
