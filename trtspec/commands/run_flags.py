"""The flags of trtspec-run: those of llama.cpp's programs, their meaning here, and why others are
refused."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.config.speculative_keys import any_number
from trtspec.config.strict import Foreign
from trtspec.errors import ConfigError
from trtspec.llmapi import help_texts
from trtspec.speculative.registry import AUTOMATIC, DEFAULT, NO_METHOD, method_name

_ONE_ATTENTION = "there is one attention op"
_CACHE = "the cache has the engine's dtype"
_FOLDER = "weights lie in the engine's folder, which is mapped as it is"
_ONE_DEVICE = "an engine runs on one device"
_LOSSLESS = "drafts end where the next one does not pay, as measured; leave it out"
_GUIDED = "grammars are not offered"
_SAMPLER = "this sampler is not offered"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_LAYERS = 99
"""From this number on, layers on the GPU means all layers."""

FOREIGN: Mapping[tuple[str, ...], Foreign] = {
    ("-b", "--batch-size"): Foreign("prompts are fed in chunks of --ubatch-size", any_number),
    ("-fa", "--flash-attn"): Foreign(_ONE_ATTENTION, (None, "on", "auto", "1")),
    ("-ctk", "--cache-type-k"): Foreign(_CACHE, (None,)),
    ("-ctv", "--cache-type-v"): Foreign(_CACHE, (None,)),
    ("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"): Foreign(_CACHE, (None,)),
    ("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"): Foreign(_CACHE, (None,)),
    ("-cd", "--ctx-size-draft", "--spec-draft-ctx-size"): Foreign(
        "a draft serves as long a text as its target", (None, 0)
    ),
    ("--draft-min", "--draft-n-min", "--spec-draft-n-min"): Foreign(_LOSSLESS, (None, 0)),
    ("--draft-p-min", "--spec-draft-p-min"): Foreign(_LOSSLESS, (None, 0)),
    ("--draft-p-split", "--spec-draft-p-split"): Foreign(_LOSSLESS, (None,)),
    ("-sm", "--split-mode"): Foreign(_ONE_DEVICE, (None, "none")),
    ("-ts", "--tensor-split"): Foreign(_ONE_DEVICE, (None,)),
    ("-mg", "--main-gpu"): Foreign("choose a GPU with CUDA_VISIBLE_DEVICES", (None, 0)),
    ("-np", "--parallel"): Foreign("one text is written at a time", (None, 1)),
    ("-tb", "--threads-batch"): Foreign("--threads are those of prompts too", (None,)),
    ("--numa",): Foreign("numactl does that for any program", (None,)),
    ("--keep",): Foreign("a text ends where the context is full", (None, 0)),
    ("--lora",): Foreign("adapters are read by LLM and trtspec-serve", (None,)),
    ("--control-vector",): Foreign("control vectors are not offered", (None,)),
    ("--mmproj",): Foreign("only text is offered", (None,)),
    ("--grammar",): Foreign(_GUIDED, (None,)),
    ("--grammar-file",): Foreign(_GUIDED, (None,)),
    ("-j", "--json-schema"): Foreign(_GUIDED, (None,)),
    ("--mirostat",): Foreign(_SAMPLER, (None, 0)),
    ("--typical", "--typical-p"): Foreign(_SAMPLER, (None, 1)),
    ("--top-nsigma",): Foreign(_SAMPLER, (None, -1)),
    ("--xtc-probability",): Foreign(_SAMPLER, (None, 0)),
    ("--dry-multiplier",): Foreign(_SAMPLER, (None, 0)),
    ("--dynatemp-range",): Foreign(_SAMPLER, (None, 0)),
    ("--repeat-last-n",): Foreign("penalties count the whole text", (None, -1)),
    ("--samplers",): Foreign("temperature comes first, then top-k, top-p and min-p", (None,)),
    ("-hf", "-hfr", "--hf-repo"): Foreign("give the repository's id as -m", (None,)),
    ("-hff", "--hf-file"): Foreign("download the file, and give it as -m", (None,)),
    ("-mu", "--model-url"): Foreign("download the file, and give it as -m", (None,)),
    ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"): Foreign(
        "give the repository's id as -md", (None,)
    ),
    ("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"): Foreign(
        "a draft lies where its target does", (None,)
    ),
    ("-devd", "--device-draft", "--spec-draft-device"): Foreign(
        "a draft lies where its target does", (None,)
    ),
    ("-td", "--threads-draft"): Foreign("--threads are those of drafts too", (None,)),
    ("-ot", "--override-tensor"): Foreign(_ONE_DEVICE, (None,)),
    ("-ncmoe", "--n-cpu-moe"): Foreign(_ONE_DEVICE, (None, 0)),
    ("-lcs", "--lookup-cache-static"): Foreign("the text itself is searched", (None,)),
    ("-lcd", "--lookup-cache-dynamic"): Foreign("the text itself is searched", (None,)),
    ("-sysf", "--system-prompt-file"): Foreign("give its text as -sys", (None,)),
    ("-bf", "--binary-file"): Foreign("a prompt is text; give it as --file", (None,)),
    ("-l", "--logit-bias"): Foreign("write a program: SamplingParams has logit_bias", (None,)),
    ("-C", "--cpu-mask"): Foreign("taskset does that for any program", (None,)),
    ("-lv", "--log-verbosity"): Foreign("--verbose or --log-disable choose it", (None,)),
    ("--rope-scaling",): Foreign("the file says it", (None,)),
    ("--rope-freq-base",): Foreign("the file says it", (None, 0)),
    ("--rope-freq-scale",): Foreign("the file says it", (None,)),
}
"""Flags with a value, by all their names."""
FOREIGN_SWITCHES: Mapping[tuple[str, ...], Foreign] = {
    ("--mlock",): Foreign(_FOLDER),
    ("--no-mmap",): Foreign(_FOLDER),
    ("-nkvo", "--no-kv-offload"): Foreign(_ONE_DEVICE),
    ("-cmoe", "--cpu-moe"): Foreign(_ONE_DEVICE),
    ("-mli", "--multiline-input"): Foreign("a line is a message"),
    ("--context-shift",): Foreign("a text ends where the context is full"),
    # What is done anyway.
    **dict.fromkeys(
        (
            ("--jinja",),
            ("--mmap",),
            ("--no-warmup",),
            ("--no-context-shift",),
            ("-co", "--color"),
            ("--simple-io",),
            ("--perf",),
            ("-kvo", "--kv-offload"),
        ),
        Foreign("", (True,)),
    ),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags; those of `FOREIGN` are hidden."""
    add = parser.add_argument_group("models").add_argument
    add("-m", "--model", required=True, help="GGUF file, HF folder or id, embedded name, engine")
    add("-md", "--model-draft", "--spec-draft-model", help="draft of any kind, likewise")
    add("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max", type=int, help="draft steps")
    add(
        "--spec-type",
        help=f"{help_texts.method()}; default: {AUTOMATIC}, which also reads what text repeats",
    )
    add("-c", "--ctx-size", type=int, default=0, help="tokens of a text; 0: the model's (default)")
    add("-ub", "--ubatch-size", type=int, help="tokens of a prompt in one call")
    add("-t", "--threads", type=int, default=-1, help="threads; -1: one a core (default)")
    add("-ngl", "--gpu-layers", "--n-gpu-layers", help="0: none, 99 or all: all; default: --device")
    add("-dev", "--device", help=help_texts.DEVICE)
    add("--dtype", default="auto", help=help_texts.DTYPE)
    add("--backend", help=help_texts.backend())

    add = parser.add_argument_group("text").add_argument
    add("-p", "--prompt", help="text to continue; in a chat, the first message")
    add("-f", "--file", type=Path, help="file that holds the prompt")
    add("-sys", "--system-prompt", help="system message of a chat")
    add("-i", "-cnv", "--interactive", "--conversation", dest="chat", action="store_true",
        default=None, help="chat (the default where there is no prompt)")  # fmt: skip
    add("-no-cnv", "--no-conversation", dest="chat", action="store_false", help="no chat")
    add("-st", "--single-turn", action="store_true", help="end a chat after one answer")
    add("-n", "--predict", "--n-predict", type=int, default=-1, help="tokens; -1: to the end")
    add("--chat-template", "--chat-template-file", help="its name, a file, or a template itself")
    add("-r", "--reverse-prompt", action="append", default=[], help="text that ends an answer")
    add("--no-escape", action="store_true", help="leave \\n and the like in prompts as they are")
    add("-e", "--escape", action="store_true", help=argparse.SUPPRESS)
    add("--ignore-eos", action="store_true", help="write on behind the model's own end")
    add("--no-display-prompt", action="store_true", help="write the new text alone")
    add("--no-perf", action="store_true", help="no line of figures")
    add("--log-disable", action="store_true", help="do not say what is built and opened")
    add("-v", "--verbose", action="store_true", help="have a log of what follows as well")

    add = parser.add_argument_group("sampling (the defaults are llama.cpp's)").add_argument
    add("-s", "--seed", type=int, default=-1, help="-1: drawn anew each time (default)")
    add("--temp", "--temperature", type=float, default=0.8, help="0: greedy (%(default)s)")
    add("--top-k", type=int, default=40, help="0: off (%(default)s)")
    add("--top-p", type=float, default=0.95, help="1: off (%(default)s)")
    add("--min-p", type=float, default=0.05, help="0: off (%(default)s)")
    add("--repeat-penalty", type=float, default=1.0, help="1: off (%(default)s)")
    add("--presence-penalty", type=float, default=0.0, help="0: off (%(default)s)")
    add("--frequency-penalty", type=float, default=0.0, help="0: off (%(default)s)")

    for names in FOREIGN:
        parser.add_argument(*names, type=_read, help=argparse.SUPPRESS)
    for names in FOREIGN_SWITCHES:
        parser.add_argument(*names, action="store_true", help=argparse.SUPPRESS)


def check_foreign(args: argparse.Namespace) -> None:
    """Raise ConfigError for a flag of `FOREIGN` that asks for something that is not offered."""
    for names, rule in {**FOREIGN, **FOREIGN_SWITCHES}.items():
        flag = next((name for name in names if name.startswith("--")), names[0])
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        if value not in (None, False) and not rule.allows(value, {}):
            said = flag if value is True else f"{flag} {value}"
            raise ConfigError(f"{said} is refused: {rule.reason}")


def device(args: argparse.Namespace) -> str | None:
    """The device implied by the layers on the GPU or by ``--device``; None: the default."""
    layers = args.gpu_layers
    if layers is None or layers == "auto":
        return "cpu" if args.device == "none" else args.device
    if layers == "0":
        meant = "cpu"
    elif layers in ("all", "-1") or (layers.isdecimal() and int(layers) >= _LAYERS):
        meant = "cuda"
    else:
        raise ConfigError(
            f"--gpu-layers {layers} would split the model; {_ONE_DEVICE}: give 0 or {_LAYERS}"
        )
    if args.device not in (None, "auto", meant):
        raise ConfigError(f"--gpu-layers {layers} means {meant}, but --device is {args.device}")
    return meant


def speculation(args: argparse.Namespace) -> dict[str, Any] | bool:
    """The speculative config for `LLM`: a mapping, or False (no speculation)."""
    kind = args.spec_type or AUTOMATIC
    if kind.startswith("draft-"):  # llama.cpp names a draft's kind so
        kind = DEFAULT if kind == "draft-simple" else kind.removeprefix("draft-")
    if kind == NO_METHOD:
        if args.model_draft is not None or args.draft_max is not None:
            raise ConfigError(f"--spec-type {NO_METHOD} leaves no use for a draft; leave it out")
        return False
    config = {"model": args.model_draft, "num_speculative_tokens": args.draft_max}
    given = {name: value for name, value in config.items() if value is not None}
    return {"method": method_name(kind), **given}


def _read(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def unescaped(text: str, args: argparse.Namespace) -> str:
    """A prompt with escape sequences replaced."""
    if args.no_escape:
        return text
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text)
