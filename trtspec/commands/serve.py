"""trtspec-serve: an OpenAI-compatible server for a checkpoint or an engine folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.builder.locate import find_model
from trtspec.commands.json_flag import read_json
from trtspec.commands.peer_flags import part_flags
from trtspec.commands.program_parser import program_parser
from trtspec.commands.replica_flags import RAY, add_replica_flags, replica_options
from trtspec.commands.weight_flags import add_adapter_flags, add_weight_flags
from trtspec.config.build_config import ADAPTER_OPTIONS, WEIGHT_OPTIONS
from trtspec.config.speculative_keys import any_bool, any_number
from trtspec.config.strict import Foreign
from trtspec.errors import ConfigError, RequestError, TrtspecError
from trtspec.executor.schedule.admission import POLICIES
from trtspec.llmapi import help_texts
from trtspec.llmapi.chat_template import template_in_file
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.peer_options import part_speculation
from trtspec.speculative.options import parse_speculative_config

_missing: ConfigError | None = None
try:
    from trtspec.serve import engine_source, process, settings
    from trtspec.serve.engine_client import EngineClient
    from trtspec.serve.replicas import cluster
    from trtspec.serve.replicas import settings as replica_settings
except ConfigError as error:  # its packages are an extra: said once the program is asked to serve
    _missing = error

API_KEY_VARIABLE = "TRTSPEC_API_KEY"
_ON_OFF = argparse.BooleanOptionalAction
_PARSER = "name of a parser; auto: as the chat template shows; none (%(default)s)"
_ONE = "one process serves; leave it out or give 1"
_FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys(
        ("log_level", "uvicorn_log_level", "log_level_http"),
        Foreign("the log has one level", (None, "info")),
    ),
    **dict.fromkeys(
        ("enable_log_requests", "log_requests"),
        Foreign("write --disable-log-requests to have none in the log", (None, True)),
    ),
    "decode_log_interval": Foreign("write --log-interval, in seconds", (None,)),
    "watchdog_timeout": Foreign("write --step-timeout", (None,)),
    "chat_template_content_format": Foreign("the template says it", (None, "auto")),
    "response_role": Foreign("an answer is the assistant's", (None, "assistant")),
    "stream_interval": Foreign("every step is streamed", (None, 1)),
    **dict.fromkeys(
        ("api_server_count", "tokenizer_worker_num", "num_postprocess_workers"),
        Foreign(_ONE, (None, 0, 1)),
    ),
    "node_rank": Foreign(_ONE, (None, 0)),
    "dist_init_addr": Foreign(_ONE, (None,)),
    "dist_timeout": Foreign("it must be a number", any_number),
    # Done always, or of no use in one process.
    **dict.fromkeys(
        (
            *("skip_server_warmup", "enable_cache_report", "enable_prompt_tokens_details"),
            *("enable_server_load_tracking", "disable_frontend_multiprocessing"),
            "enable_auto_tool_choice",
        ),
        Foreign("it must be true or false", any_bool),
    ),
    "enable_force_include_usage": Foreign("a request asks for it by stream_options"),
    **dict.fromkeys(
        ("config", "extra_llm_api_options"), Foreign("write its options as flags", (None,))
    ),
}
"""Flags of other servers, besides the options of their engines."""


def make_parser() -> argparse.ArgumentParser:
    parser = program_parser("trtspec-serve", __doc__, allow_abbrev=False)
    parser.add_argument("model", nargs="?", help="HF folder or id, embedded name or engine folder")
    parser.add_argument("--model", "--model-path", dest="model_flag", help="the same, as a flag")
    parser.set_defaults(peers={})

    add = parser.add_argument_group("engine").add_argument
    add(
        "--speculative-config",
        help='JSON such as {"method": "eagle3", "model": ..., "num_speculative_tokens": 5}; '
        f"methods: {help_texts.method()}",
    )
    add(
        "--kv-transfer-config",
        help="JSON as vLLM's, for the method extract_hidden_states: where its files go",
    )
    add("--no-speculation", action="store_true", help="leave the draft of an engine folder unused")
    add("--dtype", default="auto", help=help_texts.DTYPE)
    add_weight_flags(add, "-")
    add("--max-batch-size", "--max-num-seqs", type=int, help="sequences in one step")
    add("--max-seq-len", "--max-model-len", type=int, help="tokens of prompt and output together")
    add("--max-num-tokens", "--max-num-batched-tokens", type=int, help="rows of one step")
    add("--tokens-per-block", "--block-size", type=int, help="tokens of one KV cache block")
    add("--backend", help=help_texts.backend())
    add("--device", help=help_texts.DEVICE)
    add("--tensor-parallel-size", "--tp-size", type=int, help=help_texts.RANKS)
    add(
        "--cuda-graph-config",
        type=json.loads,
        help='JSON such as {"batch_sizes": [1, 2, 4]}; false: no graphs (default: on CUDA)',
    )
    add("--enforce-eager", action="store_true", help="no CUDA graphs")
    add("--kv-cache-dtype", help=help_texts.KV_CACHE_DTYPE)
    add("--kv-cache-max-tokens", type=int, help="tokens that the KV caches hold at most")
    add("--kv-cache-free-memory-fraction", type=float, help="part of the free memory for KV caches")
    add("--enable-prefix-caching", action=_ON_OFF, help="share the blocks of equal prefixes (on)")
    add("--async-scheduling", action=_ON_OFF, help="deliver tokens while the next step runs (on)")
    add("--steps-ahead", type=int, default=0, help=help_texts.STEPS_AHEAD)
    add(
        "--scheduling-policy",
        choices=POLICIES,
        default="fcfs",
        help="priority: waiting requests of a lower `priority` begin earlier (%(default)s)",
    )
    add("--priority-max-wait", type=float, help="seconds; then any request begins first (60)")
    add_adapter_flags(add, "-")
    add(
        "--lora-modules",
        nargs="+",
        metavar="NAME=PATH",
        help="adapters to load at the start, which clients name as their model",
    )
    add("--tokenizer", help="folder of another tokenizer")
    add("--chat-template", type=Path, help="file with a chat template in place of the checkpoint's")
    add("--tool-call-parser", default="auto", help=_PARSER)
    add("--reasoning-parser", default="auto", help=_PARSER)
    add("--seed", type=int, help="makes the seeds of requests without one reproducible")

    add_replica_flags(parser.add_argument_group("replicas").add_argument)

    add = parser.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", help="0.0.0.0: all interfaces (default: %(default)s)")
    add("--port", type=int, default=8000, help="(default: %(default)s)")
    add("--served-model-name", nargs="+", help="name(s) that clients use (default: the model)")
    add("--api-key", nargs="+", help=f"key(s) to ask for (better: ${API_KEY_VARIABLE})")
    add("--lora-dir", help="folder from which clients may load adapters (default: they may not)")
    add("--max-queue", type=int, default=256, help="waiting sequences before 429 (%(default)s)")
    add("--request-timeout", type=float, help="seconds that a request may take (no limit)")
    add("--drain-seconds", type=float, default=3.0, help="of 503 in /health first (%(default)s)")
    add("--drain-timeout", type=float, default=30.0, help="seconds after SIGTERM (%(default)s)")
    add("--keep-alive-timeout", type=float, default=75.0, help="of idle connections (%(default)s)")
    add("--step-timeout", type=float, default=300.0, help="an engine step is hung (%(default)s s)")
    add("--max-failed-steps", type=int, default=10, help="engine steps in a row (%(default)s)")
    add("--stay-after-failures", action="store_true", help="do not end after so many of them")
    add("--max-body-bytes", type=int, default=8 * 2**20, help="(default: %(default)s)")
    add("--allowed-origins", type=json.loads, default=[], help='JSON list for CORS, such as ["*"]')
    add("--root-path", default="", help="path that a proxy puts before ours")
    add("--ssl-certfile", help="serve HTTPS")
    add("--ssl-keyfile", help="serve HTTPS")

    add = parser.add_argument_group("figures and logs").add_argument
    add(
        "--metrics-prefix", default="trtspec", help="vllm: for dashboards made for it (%(default)s)"
    )
    add(
        "--per-request-spec-decode-metrics",
        choices=["none", "summary"],
        default="none",
        help="summary: speculative figures in every response, not only where asked for",
    )
    add("--log-interval", type=float, default=5.0, help="seconds; 0: never (default: %(default)s)")
    add("--log-json", action="store_true", help="JSON lines")
    add("--disable-log-requests", action="store_true", help="no line for each request")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = read_args(sys.argv[1:] if argv is None else argv)
        if (args.model is None) == (args.model_flag is None):
            raise ConfigError("give one model: a folder, an id or an embedded checkpoint's name")
        args.model = args.model or args.model_flag
        if _missing is not None:
            raise _missing
        options, speculation = llm_options(args), speculative_config(args)
        template = _template(args.chat_template)
        find_model(args.model)  # a wrong name is found before the port is bound
        source = engine_source.EngineSource(args.model, speculation, options, template)
        server = settings.ServeSettings(**server_options(args))
        open_engine: Callable[[], EngineClient] = source.open
        asked = replica_options(args)
        if asked is not None:
            replicas = replica_settings.ReplicaSettings(**asked)
            num_gpus = 0 if args.device == "cpu" else args.tensor_parallel_size or 1
            open_engine = cluster.replica_opener(replicas, server, source.open, num_gpus)
        return int(process.serve(server, args.log_json, open_engine))
    except TrtspecError as error:
        print(f"trtspec-serve: {error}", file=sys.stderr)
        return 1


def read_args(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; flags of other servers that set an option of `LLM` are in ``peers``."""
    parser = make_parser()
    words, peers = part_flags(parser, argv, _FOREIGN)
    args = parser.parse_args(words)
    speculation, args.peers = part_speculation(None, peers)
    if speculation is not None:
        if args.speculative_config is not None:
            raise ConfigError(
                f"--speculative-config holds the whole method; leave out {', '.join(speculation)}"
            )
        args.speculative_config = json.dumps(speculation)
    return args


def llm_options(args: argparse.Namespace) -> dict[str, Any]:
    """Checked options of `LLM`."""
    peers = dict(args.peers)
    in_json = peers.pop("kv_cache_config", None) or {}
    if not isinstance(in_json, Mapping):
        raise ConfigError(f"--kv-cache-config {in_json!r} is no JSON of options")
    cache = {
        "max_tokens": args.kv_cache_max_tokens,
        "free_memory_fraction": args.kv_cache_free_memory_fraction,
        "enable_block_reuse": args.enable_prefix_caching,
        "dtype": args.kv_cache_dtype,
    }
    names = ("dtype", "max_batch_size", "max_seq_len", "max_num_tokens", "tokens_per_block")
    more = ("backend", "device", "cuda_graph_config", "enforce_eager", "tokenizer", "seed")
    last = ("tensor_parallel_size", "async_scheduling", "steps_ahead", "scheduling_policy")
    every = (
        *names,
        *more,
        *WEIGHT_OPTIONS,
        *last,
        "priority_max_wait",
        "lora_modules",
        *ADAPTER_OPTIONS,
    )
    options = {name: getattr(args, name) for name in every}
    options["kv_cache_config"] = {**in_json, **{k: v for k, v in cache.items() if v is not None}}
    if args.kv_transfer_config is not None:
        flag = "--kv-transfer-config"
        options["kv_transfer_config"] = read_json(args.kv_transfer_config, flag)
    if args.distributed_executor_backend != RAY:
        options["distributed_executor_backend"] = args.distributed_executor_backend
    for name in options.keys() & peers.keys():
        raise ConfigError(f"--{name} is given twice")
    options |= peers
    config = LLMConfig(**options)
    config.build_config()
    for name in _model_names(args):
        if name in config.lora_modules:
            raise ConfigError(
                f"--lora-modules: {name!r} is a name of the model itself, which clients that ask "
                "for it would get; name the adapter otherwise"
            )
    return options


def speculative_config(args: argparse.Namespace) -> dict[str, Any] | bool | None:
    """The speculative config for `LLM`: a mapping, None (an engine folder's own) or False
    (none)."""
    if args.speculative_config is None:
        return False if args.no_speculation else None
    if args.no_speculation:
        raise ConfigError("--speculative-config and --no-speculation exclude each other")
    config = read_json(args.speculative_config, "--speculative-config")
    parse_speculative_config(config)
    return dict(config)


def server_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of `ServeSettings`."""
    keys = args.api_key
    if keys is None and os.environ.get(API_KEY_VARIABLE):
        keys = [os.environ[API_KEY_VARIABLE]]
    names = (
        "host", "port", "lora_dir",
        "max_queue", "request_timeout", "drain_seconds", "drain_timeout",
        "step_timeout",
        "max_failed_steps", "stay_after_failures",
        "max_body_bytes", "allowed_origins", "root_path", "ssl_certfile", "ssl_keyfile",
        "metrics_prefix", "log_interval", "tool_call_parser", "reasoning_parser",
    )  # fmt: skip
    return {
        **{name: getattr(args, name) for name in names},
        "keep_alive": args.keep_alive_timeout,
        "model_names": _model_names(args),
        "api_keys": keys or [],
        "request_metrics": args.per_request_spec_decode_metrics == "summary",
        "log_requests": not args.disable_log_requests,
    }


def _model_names(args: argparse.Namespace) -> list[str]:
    return args.served_model_name or [args.model]


def _template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return template_in_file(path).text
    except RequestError as error:
        raise ConfigError(f"--chat-template: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
