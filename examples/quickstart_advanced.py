"""Generate with and without speculation, and compare: text, acceptance, speed.

Without arguments it runs the checkpoints embedded in trtspec, on the CPU:

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec import LLM, RequestOutput, SamplingParams, TrtspecError, build
from trtspec.commands import help_texts
from trtspec.commands.help_texts import one_of
from trtspec.errors import ConfigError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.log import log_to_stderr
from trtspec.speculative.registry import (
    NO_METHOD,
    method_name,
    method_names,
    methods_taking,
)

EMBEDDED_TARGET = "trtspec-tiny"
EMBEDDED_DRAFTS = {
    "draft_model": "trtspec-tiny-draft",
    "eagle3": "trtspec-tiny-eagle3",
    "dflash": "trtspec-tiny-dflash",
    "ddtree": "trtspec-tiny-dflash",
}
EXAMPLE_PROMPTS = [
    "def read_file(self, path, encoding=None):\n",
    "import os\nimport sys\n\nclass ",
    "    def test_add(self):\n        self.assertEqual(",
]
ALGORITHMS = [name.upper() for name in method_names() if name != "hybrid"]
METHODS_WITHOUT_DRAFT = ("auto", "ngram", "suffix", "mtp", "extract_hidden_states")
METHODS_WITHOUT_LENGTH = ("auto", "suffix", "medusa", "extract_hidden_states")
DEFAULT_DRAFT_LEN = 5
DEFAULT_TREE_ROWS = 16


@dataclass
class Run:
    """The outputs of one pass over the prompts, and its figures."""

    name: str
    outputs: list[RequestOutput]
    seconds: float
    metrics: dict[str, Any]

    @property
    def num_tokens(self) -> int:
        return sum(len(c.token_ids) for output in self.outputs for c in output.outputs)

    @property
    def speculation(self) -> SpeculativeMetrics:
        """Over all prompts, without the warm-up."""
        return SpeculativeMetrics.merged(output.metrics for output in self.outputs)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("model")
    add = model.add_argument
    add(
        "--model_dir",
        default=EMBEDDED_TARGET,
        help="target: folder, GGUF file, id, embedded name or engine",
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

    spec = parser.add_argument_group("speculation")
    add = spec.add_argument
    add(
        "--spec_decode_algo",
        help=f"one of {', '.join(ALGORITHMS)}; without it EAGLE3 for the embedded target, "
        "DRAFT_MODEL where a draft is given, else NGRAM",
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
    add("--max_tokens", type=int, default=64)
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
    embedded = args.model_dir == EMBEDDED_TARGET and draft is None
    default = "eagle3" if embedded else "draft_model" if draft else "ngram"
    algorithm = (args.spec_decode_algo or default).upper()
    if algorithm.lower() == NO_METHOD:
        return None
    try:
        method = method_name(algorithm)
    except ConfigError as error:
        raise SystemExit(f"--spec_decode_algo {args.spec_decode_algo!r}: {error}") from error
    if method == "hybrid":
        raise SystemExit("--spec_decode_algo HYBRID: give it in --speculative_config")
    if embedded and method in EMBEDDED_DRAFTS:
        draft = given["model"] = EMBEDDED_DRAFTS[method]
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
    return {"dtype": args.dtype, "kv_cache_config": kv, **limits}


def run(folder: Path, args: argparse.Namespace, config: dict[str, Any] | None) -> Run:
    """Open the engine, warm it up on one prompt, generate for all of them."""
    params = SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        n=args.n,
        logprobs=0 if args.logprobs else None,
    )
    prompts = args.prompt or EXAMPLE_PROMPTS
    with LLM(folder, config or False, **llm_options(args)) as llm:
        llm.generate("warm up", SamplingParams(max_tokens=8))
        before = llm.get_metrics()
        began = time.perf_counter()
        if args.apply_chat_template:
            outputs = llm.chat([[{"role": "user", "content": p}] for p in prompts], params)
        else:
            outputs = llm.generate(list(prompts), params)
        seconds = time.perf_counter() - began
        metrics = llm.get_metrics()
    for key in ("num_engine_steps", "target_ms", "draft_ms", "host_ms"):
        metrics[key] -= before[key]
    return Run(config.get("method", "drafts") if config else "baseline", outputs, seconds, metrics)


def report(runs: list[Run]) -> bool:
    """Print texts and figures; True if all runs produced the same tokens."""
    identical = True
    for index, base in enumerate(runs[0].outputs):
        for sample, completion in enumerate(base.outputs):
            print(f"[{index}] Prompt: {base.prompt!r}, Generated text: {completion.text!r}")
            if completion.logprobs:
                mean = completion.cumulative_logprob / len(completion.logprobs)
                print(f"    mean logprob {mean:.4f}")
            for other in runs:
                output = other.outputs[index]
                if output.error is not None:
                    print(f"    {other.name:12} failed: {output.error}")
                    identical = False
                    continue
                metrics = output.outputs[sample].metrics
                same = output.outputs[sample].token_ids == completion.token_ids
                identical &= same
                print(
                    f"    {other.name:12} acceptance length {metrics.acceptance_length:.2f}, "
                    f"acceptance rate {metrics.acceptance_rate:.2f}, "
                    f"steps {metrics.num_steps}, text {'identical' if same else 'DIFFERENT'}"
                )
                if output.outputs[sample].kv_transfer_params:
                    print(f"    {dict(output.outputs[sample].kv_transfer_params)}")
    print()
    for item in runs:
        steps = max(item.metrics["num_engine_steps"], 1)
        total = sum(item.metrics[part] for part in ("target_ms", "draft_ms", "host_ms"))
        print(
            f"{item.name:12} {item.num_tokens / item.seconds:8.1f} tokens/s   "
            f"step {total / steps:.2f} ms "
            f"(target {item.metrics['target_ms'] / steps:.2f}, "
            f"draft {item.metrics['draft_ms'] / steps:.2f}, "
            f"host {item.metrics['host_ms'] / steps:.2f})"
        )
    for item in runs[1:]:
        rates = " ".join(f"{rate:.2f}" for rate in item.speculation.acceptance_rate_per_pos)
        print(f"acceptance   length {item.speculation.acceptance_length:.2f}, per position {rates}")
        print(f"speed-up     {runs[0].seconds / item.seconds:8.2f} x")
    print(f"texts        {'identical' if identical else 'DIFFERENT'}")
    return identical


def main() -> int:
    args = make_parser().parse_args()
    log_to_stderr("INFO" if args.print_iter_log or args.model_dir == EMBEDDED_TARGET else "WARNING")
    config = speculative_config(args)
    try:
        folder = build(args.model_dir, config, **llm_options(args))
        runs = [run(folder, args, None)]
        if config is not None:
            runs.append(run(folder, args, config))
    except TrtspecError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    identical = report(runs)
    # In 16-bit formats a near-tie may round differently; only float32 promises identity.
    return 0 if identical or args.dtype not in ("float32", "fp32") else 2


if __name__ == "__main__":
    sys.exit(main())
