"""Generate with and without speculation, and compare: text, acceptance, speed.

Without arguments it runs the checkpoints embedded in trtspec, on the CPU:

    python examples/quickstart_advanced.py

With real ones (folders, or Hugging Face ids where a hub can be reached):

    python examples/quickstart_advanced.py --model_dir <target> --draft_model_dir <draft> \
        --spec_decode_algo DRAFT_TARGET --spec_decode_max_draft_len 4
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

from trtspec import LLM, RequestOutput, SamplingParams, TrtspecError
from trtspec.log import log_to_stderr

EMBEDDED_TARGET, EMBEDDED_DRAFT = "trtspec-tiny", "trtspec-tiny-draft"
EXAMPLE_PROMPTS = [
    "def read_file(self, path, encoding=None):\n",
    "import os\nimport sys\n\nclass ",
    "    def test_add(self):\n        self.assertEqual(",
]
ALGORITHMS = ("NONE", "NGRAM", "DRAFT_TARGET")


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


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("model")
    add = model.add_argument
    add("--model_dir", default=EMBEDDED_TARGET, help="target: folder, id, embedded name or engine")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--max_batch_size", type=int)
    add("--max_seq_len", type=int)
    add("--max_num_tokens", type=int)
    add("--backend", help="aoti (compiled, the default) or eager (for debugging)")
    add("--kv_cache_fraction", type=float, help="share of the free memory for the KV cache")
    add("--disable_kv_cache_reuse", action="store_true", help="do not share equal prefixes")

    spec = parser.add_argument_group("speculation")
    add = spec.add_argument
    add(
        "--spec_decode_algo",
        help=f"one of {', '.join(ALGORITHMS)}; DRAFT_TARGET by default where a draft is known",
    )
    add("--draft_model_dir", help="draft: folder, id or embedded name")
    add("--spec_decode_max_draft_len", type=int, default=4, help="K of a chain, depth D of a tree")
    add("--max_matching_ngram_size", type=int, default=5, help="longest n of NGRAM")
    add("--dynamic_tree_max_topK", type=int, help="k of a tree (k, D, N) of the draft model")
    add("--num_draft_tokens", type=int, help="N of a tree: rows verified, the root included")

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
    return parser.parse_args()


def speculative_config(args: argparse.Namespace) -> dict[str, Any] | None:
    """What the flags ask for, as `LLM` takes it; None for no speculation."""
    algorithm = args.spec_decode_algo
    draft = args.draft_model_dir
    if draft is None and args.model_dir == EMBEDDED_TARGET:
        draft = EMBEDDED_DRAFT
    if algorithm is None:
        algorithm = "DRAFT_TARGET" if draft else "NGRAM"
    algorithm = algorithm.upper()
    if algorithm not in ALGORITHMS:
        raise SystemExit(
            f"--spec_decode_algo {args.spec_decode_algo!r} is unknown; "
            f"choose one of {', '.join(ALGORITHMS)}"
        )
    if algorithm == "NONE":
        return None
    length = args.spec_decode_max_draft_len
    if algorithm == "NGRAM":
        return {
            "method": "ngram",
            "num_speculative_tokens": length,
            "prompt_lookup_max": args.max_matching_ngram_size,
        }
    if draft is None:
        raise SystemExit("--spec_decode_algo DRAFT_TARGET needs --draft_model_dir")
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": length}
    if args.dynamic_tree_max_topK is not None:
        config["topk"] = args.dynamic_tree_max_topK
    if args.num_draft_tokens is not None:
        config["num_draft_tokens"] = args.num_draft_tokens
    return config


def run(name: str, args: argparse.Namespace, config: dict[str, Any] | None) -> Run:
    """Load the model, warm it up on one prompt, generate for all of them."""
    kv: dict[str, Any] = {"enable_block_reuse": not args.disable_kv_cache_reuse}
    if args.kv_cache_fraction is not None:
        kv["free_memory_fraction"] = args.kv_cache_fraction
    names = ("max_batch_size", "max_seq_len", "max_num_tokens", "backend")
    limits = {key: getattr(args, key) for key in names if getattr(args, key) is not None}
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
    spec = False if config is None else config
    with LLM(args.model_dir, spec, dtype=args.dtype, kv_cache_config=kv, **limits) as llm:
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
    return Run(name, outputs, seconds, metrics)


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
    if len(runs) > 1:
        print(f"speed-up     {runs[0].seconds / runs[1].seconds:8.2f} x")
    print(f"texts        {'identical' if identical else 'DIFFERENT'}")
    return identical


def main() -> int:
    args = parse_arguments()
    log_to_stderr("INFO" if args.print_iter_log or args.model_dir == EMBEDDED_TARGET else "WARNING")
    config = speculative_config(args)
    try:
        runs = [run("baseline", args, None)]
        if config is not None:
            runs.append(run(str(config["method"]), args, config))
    except TrtspecError as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    identical = report(runs)
    # In 16-bit formats a near-tie may round differently; only float32 promises identity.
    return 0 if identical or args.dtype not in ("float32", "fp32") else 2


if __name__ == "__main__":
    sys.exit(main())
