"""trtspec-build: compile a checkpoint, and a draft for it, into an engine folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from trtspec.backends.base import Backend
from trtspec.backends.registry import backend_named, backends
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.commands.json_flag import read_json
from trtspec.commands.peer_flags import part_flags
from trtspec.commands.program_parser import program_parser
from trtspec.commands.weight_flags import add_adapter_flags, add_weight_flags
from trtspec.config.build_config import ADAPTER_OPTIONS, WEIGHT_OPTIONS, BuildConfig
from trtspec.config.decoding import DecodingConfig
from trtspec.config.speculative_keys import any_bool, any_number
from trtspec.config.strict import Foreign, nearest, resolve_keys
from trtspec.errors import ConfigError, TrtspecError
from trtspec.formats.registry import format_kinds, weight_only_kinds
from trtspec.llmapi import flags, help_texts
from trtspec.llmapi.help_texts import one_of
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.peer_options import part_speculation
from trtspec.log import log_to_stderr
from trtspec.speculative.options import parse_speculative_config
from trtspec.speculative.registry import methods_taking
from trtspec.train.awq import AWQ_BITS, quantise_by_awq
from trtspec.train.own_vocabulary import let_write

RTN, AWQ = QUANTIZERS = ("rtn", "awq")
_KERNELS = "the backend chooses its kernels"
_FOREIGN: Mapping[str, Foreign] = {
    "workers": Foreign("a build is one process; give 1", (None, 1)),
    "opt_num_tokens": Foreign("it must be a number", any_number),
    **dict.fromkeys(
        ("gemm_plugin", "gpt_attention_plugin", "moe_plugin", "nccl_plugin"),
        Foreign(_KERNELS, (None, "auto")),
    ),
    **dict.fromkeys(
        ("use_paged_context_fmha", "context_fmha", "remove_input_padding", "paged_kv_cache"),
        Foreign("rows are packed and K/V is paged, always", (None, "enable")),
    ),
    "kv_cache_type": Foreign("K/V is paged", (None, "paged")),
    **dict.fromkeys(
        ("gather_context_logits", "gather_generation_logits", "gather_all_token_logits"),
        Foreign("logits are not returned"),
    ),
    "logits_dtype": Foreign("logits are float32", (None, "float32")),
    "log_level": Foreign("the log has one level", (None, "info")),
    "fast_build": Foreign("it must be true or false", any_bool),
    "model_config": Foreign("the checkpoint's config.json says it", (None,)),
}
"""Flags of trtllm-build, besides the options of engines."""


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser("trtspec-build", __doc__)
    add = parser.add_argument
    add(
        "--checkpoint_dir",
        required=True,
        help="target: HF folder or id, GGUF file, or embedded name",
    )
    add("--output_dir", type=Path, required=True, help="engine folder to write")
    add("--dtype", default="auto", help=help_texts.DTYPE)
    add_weight_flags(add)
    add(
        "--quantize",
        help=f"how float weights become those of --weight_dtype: {one_of(QUANTIZERS, RTN)}; rtn "
        "rounds to the nearest, awq (int4; extra train) first scales inputs so that outputs over "
        "a text change least",
    )
    add(
        "--calibration_text",
        type=Path,
        help="file of plain text that awq reads (default: what the target writes itself)",
    )
    add(
        "--use_weight_only",
        action="store_true",
        help="as --weight_dtype with what --weight_only_precision says, or with its first",
    )
    add("--weight_only_precision", help=", ".join(weight_only_kinds()))
    add("--max_batch_size", type=int, help="requests in one step")
    add("--max_seq_len", type=int, help="tokens of a sequence, prompt and output")
    add("--max_num_tokens", type=int, help="rows of one step over all requests")
    add("--kv_cache_dtype", help=help_texts.KV_CACHE_DTYPE)
    add("--tokens_per_block", type=int, help="tokens of one KV cache block")
    add("--backend", help=help_texts.backend())
    add("--device", help=help_texts.DEVICE)
    add("--tensor_parallel_size", "--tp_size", type=int, help=help_texts.RANKS)
    add_adapter_flags(add)
    add("--speculative_decoding_mode", help=help_texts.method())
    add(
        "--speculative_config",
        "--speculative-config",
        help='all of the speculation as JSON, which a hybrid takes: {"method": "hybrid", '
        '"drafters": [{"method": "suffix"}, {"method": "eagle3", "model": ..., ...}]}',
    )
    add(
        "--draft_checkpoint_dir",
        "--speculative_model_dir",
        "--medusa_model_dir",
        help="draft: HF folder or id, GGUF file, or embedded name",
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
        help=f"static tree of {one_of(methods_taking('eagle_choices'))} in place of (k, D, N), "
        "such as '[[0],[1],[0,0]]'",
    )
    add(
        "--medusa_choices",
        help=f"static tree of {one_of(methods_taking('medusa_choices'))}, such as "
        "'[[0],[1],[0,0]]'; a default for the heads without it",
    )
    add("--num_medusa_heads", type=int, help="heads of medusa to draft with")
    add(
        "--use_mtp_vanilla",
        action=argparse.BooleanOptionalAction,
        help="whether each module of mtp drafts at a depth of its own, or the first one at every "
        "depth (default: the former where the checkpoint has modules enough)",
    )
    flags.add_rows(add, flags.SPECULATION, flags.draft_flags())
    add(
        "--mask_token_id",
        type=int,
        help=f"mask token of {one_of(methods_taking('mask_token_id'))}, to check the draft's",
    )
    add(
        "--capture_layers",
        type=flags.layer,
        nargs="+",
        help=f"extract_hidden_states: {flags.LAYERS}",
    )
    add(
        "--eagle_aux_hidden_state_layer_ids",
        type=int,
        nargs="+",
        help="the same by vLLM's numbers, which name inputs",
    )
    add(
        "--skip_tokenizer_init",
        action="store_true",
        help="build although the checkpoint's tokenizer cannot be read; prompts are token ids",
    )
    add("--tokenizer", help=help_texts.TOKENIZER)
    add(
        "--verify",
        action="store_true",
        help="hash the checkpoints again, whatever is remembered of them since an earlier build",
    )
    for backend in backends().values():
        if option_names(backend):
            group = parser.add_argument_group(f"backend {backend.name}")
            backend.add_flags(group)
    add("--report", action="store_true", help="print what the backend made of the graphs")
    add("--force", action="store_true", help="replace whatever --output_dir holds")
    add("--dry_run", action="store_true", help="print the plan and stop")
    return parser


def read_args(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; flags of other builders that set a field of BuildConfig are in
    ``peers``.

    Raises:
        ConfigError: a flag is refused, or is meant for running an engine.
    """
    parser = make_parser()
    words, peers = part_flags(parser, argv, _FOREIGN)
    args = parser.parse_args(words)
    speculation, peers = part_speculation(None, peers)
    if speculation is not None:
        if args.speculative_config is not None:
            raise ConfigError(
                f"--speculative_config holds the whole method; leave out {', '.join(speculation)}"
            )
        args.speculative_config = json.dumps(speculation)
    args.peers = resolve_keys(LLMConfig, (), peers)
    for name, value in args.peers.items():
        if name not in {field.name for field in fields(BuildConfig)}:
            raise ConfigError(
                f"--{name} is no option of a build, but of those who open the engine: LLM, "
                "trtspec-serve"
            )
        if getattr(args, name, None) not in (None, "auto", value):
            raise ConfigError(f"--{name} is given twice: {getattr(args, name)!r} and {value!r}")
    return args


def speculative_options(args: argparse.Namespace) -> DecodingConfig | None:
    """The speculative config that the flags describe; ConfigError for flags without a mode, or
    combined with a whole config."""
    options = {
        "model": args.draft_checkpoint_dir,
        "max_draft_len": args.max_draft_len,
        "topk": args.topk,
        "num_draft_tokens": args.num_draft_tokens,
        "eagle_choices": args.eagle_choices,
        "medusa_choices": args.medusa_choices,
        "num_medusa_heads": args.num_medusa_heads,
        "use_mtp_vanilla": args.use_mtp_vanilla,
        **flags.options(args, flags.SPECULATION),
        "mask_token_id": args.mask_token_id,
        "capture_layers": args.capture_layers,
        "eagle_aux_hidden_state_layer_ids": args.eagle_aux_hidden_state_layer_ids,
    }
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    mode = args.speculative_decoding_mode
    if args.speculative_config is not None:
        if given or mode is not None:
            others = sorted(given) + (["--speculative_decoding_mode"] if mode else [])
            raise ConfigError(
                f"--speculative_config holds the whole method; leave out {', '.join(others)}"
            )
        return parse_speculative_config(read_json(args.speculative_config, "--speculative_config"))
    if mode is None:
        if given:
            raise ConfigError(
                f"{', '.join(sorted(given))} given without --speculative_decoding_mode"
            )
        return None
    return parse_speculative_config({"method": mode, **given})


def option_names(backend: Backend) -> list[str]:
    """The method's options, after which its flags are named."""
    return [entry.name for entry in fields(backend.options_class)]


def backend_options(args: argparse.Namespace) -> dict[str, Any]:
    """The given backend options as plain values."""
    names = [name for backend in backends().values() for name in option_names(backend)]
    given = {name: getattr(args, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def weight_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of BuildConfig that the weight flags describe; ConfigError if they contradict each
    other."""
    precision, kind = args.weight_only_precision, args.weight_dtype
    if precision is not None and not args.use_weight_only:
        raise ConfigError(
            f"--weight_only_precision {precision} was given without --use_weight_only"
        )
    known = weight_only_kinds()
    if precision is not None and precision not in known:
        supported = ", ".join(known)
        raise ConfigError(
            f"--weight_only_precision {precision} is not supported (supported: {supported})"
        )
    if args.use_weight_only:
        meant = known[precision or next(iter(known))].name
        if kind not in (None, meant):
            raise ConfigError(
                f"--use_weight_only means --weight_dtype {meant}, but --weight_dtype {kind} was "
                "given"
            )
        kind = meant
    given = {name: getattr(args, name) for name in WEIGHT_OPTIONS} | {"weight_dtype": kind}
    return {name: value for name, value in given.items() if value is not None}


def quantizer(args: argparse.Namespace, weights: Mapping[str, Any]) -> str:
    """The one of `QUANTIZERS` that the flags ask for; ConfigError if they contradict each other.
    ``weights``: see `weight_options`."""
    asked, kind = args.quantize or RTN, weights.get("weight_dtype")
    if asked not in QUANTIZERS:
        known = ", ".join(QUANTIZERS)
        raise ConfigError(
            f"--quantize {asked!r} is not supported{nearest(asked, QUANTIZERS)} "
            f"(supported: {known})"
        )
    made = next(known.name for known in format_kinds().values() if known.bits == AWQ_BITS)
    if asked == AWQ and kind != made:
        raise ConfigError(
            f"--quantize {AWQ} was given with --weight_dtype {kind or 'auto'}; it makes {made}: "
            f"give --weight_dtype {made}, or --quantize {RTN}"
        )
    if args.quantize is not None and kind not in format_kinds():
        kinds = " or ".join(format_kinds())
        raise ConfigError(
            f"--quantize {asked} was given without --weight_dtype {kinds}; give both or neither"
        )
    if args.calibration_text is not None and asked != AWQ:
        raise ConfigError(
            f"--calibration_text {args.calibration_text} was given without --quantize {AWQ}, which "
            "alone reads a text; give both or neither"
        )
    return asked


def quantised(
    plan: BuildPlan,
    config: BuildConfig,
    speculative: DecodingConfig | None,
    args: argparse.Namespace,
) -> BuildPlan:
    """The plan of the same flags with the target's weights quantised by AWQ."""
    group_size = plan.engine.build.weight_group_size
    assert group_size is not None, "a resolved build says it"
    folder = quantise_by_awq(
        plan.target_dir, group_size, args.calibration_text, plan.another_tokenizer
    )
    let_write(folder, speculative, plan.another_tokenizer)
    return plan_build(
        folder,
        replace(config, weight_group_size=None),  # kept are the groups that its weights have
        speculative,
        args.skip_tokenizer_init,
        args.verify,
        plan.target_dir,
        args.tokenizer,
    )


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = read_args(sys.argv[1:] if argv is None else argv)
    except TrtspecError as error:
        print(f"trtspec-build: {error}", file=sys.stderr)
        return 1
    log_to_stderr()
    names = (
        "max_batch_size", "max_seq_len", "max_num_tokens", "tokens_per_block", "backend", "device",
        "kv_cache_dtype", "tensor_parallel_size", *ADAPTER_OPTIONS,
    )  # fmt: skip
    limits = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        options, weights = backend_options(args), weight_options(args)
        asked = {"dtype": args.dtype, "backend_options": options, **weights, **limits}
        config = BuildConfig(**{**asked, **args.peers})
        backend = backend_named(config.backend)
        if args.report and backend.report is None:
            able = " or ".join(each.name for each in backends().values() if each.report)
            raise ConfigError(f"--report needs --backend {able}, not {backend.name}")
        way = quantizer(args, weights)
        speculative = speculative_options(args)
        if not args.dry_run:
            let_write(args.checkpoint_dir, speculative, args.tokenizer)
        plan = plan_build(
            args.checkpoint_dir,
            config,
            speculative,
            args.skip_tokenizer_init,
            args.verify,
            tokenizer=args.tokenizer,
        )
        if way == AWQ and not args.dry_run:
            plan = quantised(plan, config, speculative, args)
        print(plan.describe())
        if not args.dry_run:
            folder = build_engine(plan, args.output_dir, force=args.force)
            print(f"built    {folder}")
            if args.report and backend.report is not None:
                print((folder / backend.report).read_text(), end="")
    except TrtspecError as error:
        print(f"trtspec-build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
