"""Flags for what to generate, and the prompts that they describe; for all benchmarks that run a
model in this process."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from trtspec.bench.data.dataset import (
    STDLIB,
    STDLIB_TOKENS,
    BenchPrompt,
    Question,
    encode_questions,
    held_out_prompts,
    read_questions,
    spread,
)
from trtspec.commands.weight_flags import add_weight_flags
from trtspec.config.build_config import WEIGHT_OPTIONS
from trtspec.errors import ConfigError
from trtspec.llmapi import help_texts

SETTINGS = ("dataset", "num_prompts", "prompt_tokens", "max_tokens", "seed", "ignore_eos")
"""Names of these flags in result files."""


def add_prompt_flags(
    parser: argparse.ArgumentParser, max_tokens: int, num_prompts: int = 16
) -> None:
    """Data set, number and lengths; ``max_tokens`` and ``num_prompts`` are defaults."""
    add = parser.add_argument
    add(
        "--dataset",
        "--prompts",
        default=STDLIB,
        help="Spec-Bench or MT-Bench question.jsonl (its first turns), .jsonl of {prompt}, or of "
        "{kind, prompt} for what users ask, compared by kind, a text file of one prompt a line, or "
        f"{STDLIB}: held-out code (default)",
    )
    add(
        "--num_prompts",
        type=int,
        default=num_prompts,
        help="at even distances over the file; 0: all (default: %(default)s)",
    )
    add(
        "--prompt_tokens",
        type=int,
        help=f"tokens of a prompt: its length with {STDLIB} (default {STDLIB_TOKENS}), else where "
        "longer texts are cut (default: nowhere)",
    )
    add("--no_chat_template", action="store_true", help="ask turns of conversations as bare text")
    add(
        "--max_tokens",
        type=int,
        default=max_tokens,
        help="tokens to generate for a prompt (default: %(default)s)",
    )


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Other flags that the text depends on."""
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ignore_eos", action="store_true", help="always generate max_tokens")


def add_engine_flags(parser: argparse.ArgumentParser, several_backends: bool = False) -> None:
    """How a checkpoint is built; with ``several_backends`` the backend flag takes a list."""
    add = parser.add_argument
    add("--dtype", default="auto", help=help_texts.DTYPE)
    add(
        "--backend",
        nargs="+" if several_backends else None,
        help=help_texts.backend() + ("; or several" if several_backends else ""),
    )
    add("--device", help=help_texts.DEVICE)
    add("--max_seq_len", type=int, help="tokens of a sequence, prompt and output")
    add("--kv_cache_dtype", help=help_texts.KV_CACHE_DTYPE)
    add_weight_flags(add)


ENGINE_OPTIONS = ("max_seq_len", "backend", "device", "kv_cache_dtype", *WEIGHT_OPTIONS)
"""The options of a build that `add_engine_flags` adds, besides ``dtype``."""


class PromptSource:
    """The prompts that the flags describe. Files are read and checked at once, before any engine is
    built; the tokenizer is needed later.

    Raises:
        ConfigError: a number is out of range, or a file cannot be read.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        for name in ("num_prompts", "prompt_tokens", "max_tokens"):
            value, least = getattr(args, name), 0 if name == "num_prompts" else 1
            if value is not None and value < least:
                raise ConfigError(f"--{name} {value} must be at least {least}")
        self._args = args
        self._count = args.num_prompts or None
        self._questions: list[Question] | None = None
        if args.dataset != STDLIB:
            self._questions = spread(read_questions(Path(args.dataset)), self._count)

    def encode(self, tokenizer: Any) -> list[BenchPrompt]:
        """The prompts as token ids; ConfigError if none is long enough."""
        args = self._args
        if self._questions is not None:
            return encode_questions(
                self._questions, tokenizer, args.prompt_tokens, not args.no_chat_template
            )
        length = args.prompt_tokens or STDLIB_TOKENS
        prompts = held_out_prompts(tokenizer, self._count or sys.maxsize, length)
        if not prompts:
            raise ConfigError(
                f"{STDLIB} has no held-out text of twice --prompt_tokens {length}; lower it"
            )
        return prompts
