"""trtspec-build: compile a checkpoint, and a draft for it, into an engine folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.builder.build import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.speculative import DecodingConfig, method_name, parse_speculative_config
from trtspec.errors import ConfigError, TrtspecError
from trtspec.log import log_to_stderr


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trtspec-build", description=__doc__)
    add = parser.add_argument
    add("--checkpoint_dir", required=True, help="target: HF folder or id, or an embedded name")
    add("--output_dir", type=Path, required=True, help="engine folder to write")
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 (default: %(default)s)")
    add("--max_batch_size", type=int, help="requests in one step")
    add("--max_seq_len", type=int, help="tokens of a sequence, prompt and output")
    add("--max_num_tokens", type=int, help="rows of one step over all requests")
    add("--tokens_per_block", type=int, help="tokens of one KV cache block")
    add("--backend", help="aoti (default) or eager")
    add("--device", help="cpu (default), cuda, or auto: cuda where torch finds one")
    add(
        "--speculative_decoding_mode",
        help="eagle3, eagle, medusa, mtp (the target's own modules), draft_model, ngram or suffix "
        "(which need no engine of their own), or extract_hidden_states (which drafts nothing)",
    )
    add(
        "--draft_checkpoint_dir",
        "--speculative_model_dir",
        "--medusa_model_dir",
        help="draft: HF folder or id, or an embedded name",
    )
    add(
        "--max_draft_len",
        "--num_steps",
        type=int,
        help="draft steps: K of a chain, depth D of a tree",
    )
    add("--topk", "--eagle_topk", "--dynamic_tree_max_topK", type=int, help="k of a tree (k, D, N)")
    add("--num_draft_tokens", type=int, help="N of a tree: rows verified, the root included")
    add(
        "--eagle_choices",
        help="static tree of eagle, eagle3, mtp in place of (k, D, N), such as '[[0],[1],[0,0]]'",
    )
    add(
        "--medusa_choices",
        help="static tree of medusa, such as '[[0],[1],[0,0]]'; a default for the heads without it",
    )
    add("--num_medusa_heads", type=int, help="heads of medusa to draft with")
    add(
        "--speculative_token_map",
        help="file of the token ids to cut a head of eagle or mtp to",
    )
    add(
        "--capture_layers",
        type=int,
        nargs="+",
        help="extract_hidden_states: layers whose outputs are written, -1 for the embeddings",
    )
    add(
        "--eagle_aux_hidden_state_layer_ids",
        type=int,
        nargs="+",
        help="the same by vLLM's numbers, which name inputs",
    )
    add("--force", action="store_true", help="replace whatever --output_dir holds")
    add("--dry_run", action="store_true", help="print the plan and stop")
    return parser


def speculative_options(args: argparse.Namespace) -> DecodingConfig | None:
    """The speculative config that the flags describe; ConfigError for flags without a mode."""
    flags = {
        "model": args.draft_checkpoint_dir,
        "max_draft_len": args.max_draft_len,
        "topk": args.topk,
        "num_draft_tokens": args.num_draft_tokens,
        "eagle_choices": args.eagle_choices,
        "medusa_choices": args.medusa_choices,
        "num_medusa_heads": args.num_medusa_heads,
        "speculative_token_map": args.speculative_token_map,
        "capture_layers": args.capture_layers,
        "eagle_aux_hidden_state_layer_ids": args.eagle_aux_hidden_state_layer_ids,
    }
    given: dict[str, Any] = {key: value for key, value in flags.items() if value is not None}
    mode = args.speculative_decoding_mode
    if mode is None:
        if given:
            raise ConfigError(
                f"{', '.join(sorted(given))} given without --speculative_decoding_mode"
            )
        return None
    return parse_speculative_config({"method": method_name(mode), **given})


def main(argv: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    log_to_stderr()
    names = (
        "max_batch_size", "max_seq_len", "max_num_tokens", "tokens_per_block", "backend", "device",
    )  # fmt: skip
    limits = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        config = BuildConfig(dtype=args.dtype, **limits)
        plan = plan_build(args.checkpoint_dir, config, speculative_options(args))
        print(plan.describe())
        if not args.dry_run:
            print(f"built    {build_engine(plan, args.output_dir, force=args.force)}")
    except TrtspecError as error:
        print(f"trtspec-build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
