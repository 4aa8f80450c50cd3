"""trtspec-train: a draft for any model, from nothing but the model.

The target writes the texts that its draft will learn from (or answers prompts of yours, or its
recorded traffic is used), and a head is trained on its hidden states by NVIDIA ModelOpt. A plan is
printed first. A training that was cut short goes on when the same command is run again. CUDA is
used where torch finds it, and has not been tried.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from trtspec.commands.program_parser import program_parser
from trtspec.errors import TrtspecError
from trtspec.llmapi import help_texts
from trtspec.log import log_to_stderr
from trtspec.speculative.registry import trainable_methods
from trtspec.train.options import MAX_DEPTH, TrainOptions
from trtspec.train.run import make_plan, train_draft


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser(
        "trtspec-train", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    default = {field.name: field.default for field in fields(TrainOptions)}
    shown = " (default: %(default)s)"
    add("method", help=help_texts.one_of(trainable_methods()))
    add("--model", required=True, help="the target: HF folder or id, GGUF file, embedded name")
    add("--tokenizer", help=help_texts.TOKENIZER)
    add("--output", type=Path, required=True, help="folder of the head, which must not exist")
    data = parser.add_argument_group("data (the target writes, unless something is given)")
    add_data = data.add_argument
    add_data("--hidden_states", type=Path, help="folder of states recorded while it served")
    add_data("--prompts", type=Path, help="file of prompts: one a line, or .jsonl of {prompt}")
    add_data("--raw_prompts", action="store_true", help="do not use the chat template for them")
    add_data(
        "--from_base",
        action="store_true",
        help="write on from the beginning of a text, even where there is a chat template",
    )
    add_data("--tokens", type=int, default=default["tokens"], help="tokens that it writes" + shown)
    add_data(
        "--max_text_tokens",
        type=int,
        default=default["max_text_tokens"],
        help="of one text, prompt and answer" + shown,
    )
    add_data("--batch", type=int, default=default["batch"], help="texts written at once" + shown)
    training = parser.add_argument_group("training")
    add_training = training.add_argument
    add_training("--passes", type=float, default=default["passes"], help="over the data" + shown)
    add_training(
        "--depth",
        type=int,
        help=f"tokens of the longest draft, at most {MAX_DEPTH} (default: the method's)",
    )
    add_training(
        "--draft_vocab_size",
        type=int,
        help="tokens that the draft may propose; 0: all (default: as many as make drafts fastest)",
    )
    for name, text in (
        ("window_tokens", "most tokens of a text that are trained on at once"),
        ("step_tokens", "tokens of a step"),
    ):
        add_training(f"--{name}", type=int, default=default[name], help=text + shown)
    for name, text in (
        ("learning_rate", "of the matrices"),
        ("vocabulary_rate", "of the vocabulary head and the norms"),
    ):
        add_training(f"--{name}", type=float, default=default[name], help=text + shown)
    add("--backend", help=help_texts.backend() + ", of the engine that writes and measures")
    add("--device", default="auto", help=help_texts.DEVICE)
    add("--seed", type=int, default=default["seed"])
    add("--state", type=Path, help="keeps texts and checkpoints (default: the user's cache folder)")
    add("--dry_run", action="store_true", help="print the plan and stop")
    add("--finish", action="store_true", help="write the head of the last checkpoint as it is")
    add("--no_measure", action="store_true", help="do not run the head in the engine at the end")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser().parse_args(argv)
    log_to_stderr()
    names = {field.name for field in fields(TrainOptions)}
    given = {name: value for name, value in vars(args).items() if name in names}
    try:
        plan = make_plan(TrainOptions(**given))
        print(plan.describe(), flush=True)
        if not args.dry_run:
            train_draft(plan, argv)
    except TrtspecError as error:
        print(f"trtspec-train: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("trtspec-train: stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
