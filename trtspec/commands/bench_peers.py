"""trtspec-bench peers: trtspec beside other engines, on the same weights and prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.peers.contender import (
    OURS,
    Contender,
    contenders_of,
    installed_peers,
    own_contender,
    read_peers,
)
from trtspec.bench.peers.process import Job, PeerError
from trtspec.bench.peers.report import FORMAT, FORMAT_VERSION, print_point, summarize
from trtspec.bench.peers.report import __doc__ as REPORT
from trtspec.bench.peers.round import run_round
from trtspec.bench.peers.workers.engines import ENGINES, MODES, PLAIN
from trtspec.bench.report.result_file import make_result, save
from trtspec.bench.runs.compare import WARM_UP_TOKENS
from trtspec.bench.runs.interleaving import fit_together
from trtspec.builder.available_drafts import available_drafts
from trtspec.builder.locate import find_model
from trtspec.builder.tokenizer import further_ends
from trtspec.commands.bench_methods import add_method_flags, build_methods, check_method_flags
from trtspec.commands.bench_prompts import (
    SETTINGS,
    PromptSource,
    add_engine_flags,
    add_prompt_flags,
    add_text_flags,
)
from trtspec.engine.folder import TOKENIZER_FOLDER, EngineConfig
from trtspec.errors import ConfigError
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.ops.host import usable_cpus


def add_peers_command(commands: Any) -> None:
    """Add the command to the subparsers of `trtspec-bench`."""
    peers = commands.add_parser(
        "peers",
        help="the same prompts and weights through transformers, OpenVINO GenAI, vLLM and "
        "llama.cpp (xllamacpp), each in a process of its own",
        description=REPORT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    peers.set_defaults(run=run_peers)
    add = peers.add_argument
    add_method_flags(peers)
    add(
        "--peers",
        nargs="*",
        help=f"of {', '.join(ENGINES)}: name, or name=<environment>/bin/python where it is "
        "installed in an environment of its own (default: those that this Python can import)",
    )
    add(
        "--peer_models",
        nargs="*",
        default=[],
        help="models in a peer's own format: openvino=<folder> openvino.draft_model=<folder> "
        "xllamacpp=<gguf>; a GGUF file in --model or --drafts is read by those that can",
    )
    add(
        "--peer_methods",
        nargs="+",
        choices=MODES,
        default=MODES,
        help="what they are to do of what they can (default: all)",
    )
    add(
        "--num_draft_tokens",
        type=int,
        nargs="+",
        default=[4],
        help="of a peer's step: each of these for every way that it speculates (default: 4)",
    )
    add("--threads", type=int, help="of every engine (default: the usable cores)")
    add_prompt_flags(peers, max_tokens=128, num_prompts=6)
    add_text_flags(peers)
    add(
        "--no_prefills",
        action="store_true",
        help="ask for each text once, not for its first token alone as well: saves the time of all "
        "prefills, and tells nothing of decoding alone",
    )
    add_engine_flags(peers)


def run_peers(args: argparse.Namespace) -> int:
    check_method_flags(args)
    for name, values in (("num_draft_tokens", args.num_draft_tokens), ("threads", [args.threads])):
        for value in values:
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value} must be at least 1")
    source = PromptSource(args)
    target = str(find_model(args.model))
    given = args.peers is not None
    peers = read_peers(args.peers, args.peer_models, target) if given else installed_peers(target)
    drafts = available_drafts(args.model, args.drafts)
    methods, built, left_out = build_methods(args, drafts)
    engine = EngineConfig.read(built[methods[0].name])
    tokenizer = load_tokenizer(built[methods[0].name] / TOKENIZER_FOLDER)
    ends = (*engine.target.eos_token_ids, *further_ends(tokenizer, engine.target))
    prompts = source.encode(tokenizer)
    texts = [prompt.token_ids for prompt in prompts]
    kinds = [prompt.question.category for prompt in prompts]
    threads = args.threads or usable_cpus()
    used = {mode for peer in peers for mode in ENGINES[peer.name].draft_modes}
    folders = {d.method: str(find_model(d.name)) for d in drafts if d.method in used}
    points: list[dict[str, Any]] = []
    for batch_size in args.batch_sizes:
        for temperature in args.temperatures:
            base = Job(
                target,
                PLAIN,
                batch_size=batch_size,
                max_seq_len=max(map(len, texts)) + args.max_tokens + 64,
                threads=threads,
                dtype=engine.build.dtype,
                temperature=temperature,
                stop_ids=() if args.ignore_eos else ends,
            )
            contenders = [own_contender(method, built[method.name], base) for method in methods]
            for peer in peers:
                contenders += contenders_of(
                    peer, base, folders, args.num_draft_tokens, args.peer_methods
                )
            _measure(args, contenders, texts)
            points.append(summarize(batch_size, temperature, contenders, kinds))
            print_point(points[-1])
            if args.output is not None:  # at once: a later point may never come
                save(args.output, _report(args, texts, left_out, points))
    return 0


def _measure(
    args: argparse.Namespace, contenders: Sequence[Contender], prompts: Sequence[list[int]]
) -> None:
    """Run all rounds. A failure of trtspec is an error; another engine keeps its failure as a
    result, and the rest goes on."""
    left = list(contenders)

    def fail(contender: Contender, error: PeerError) -> None:
        if contender.engine == OURS:
            raise error
        contender.failure = " ".join(str(error).split())
        print(f"{contender.name} failed: {contender.failure}", flush=True)
        left.remove(contender)

    fit = fit_together(sum(map(_model_bytes, contenders)), "cpu")
    for number in range(args.rounds):
        order = left[:: -1 if number % 2 else 1]
        for group in [order] if fit else [[contender] for contender in order]:
            run_round(
                group,
                prompts,
                args.max_tokens,
                args.seed,
                WARM_UP_TOKENS,
                group[0].job.batch_size,
                fail,
                not args.no_prefills,
            )


def _model_bytes(contender: Contender) -> int:
    """Approximate memory of a contender's weights: the files of its models, which our engines map,
    and which others copy."""
    paths = map(Path, filter(None, (contender.job.model, contender.job.draft)))
    files = (f for path in paths for f in (path.rglob("*") if path.is_dir() else [path]))
    copies = 1 if contender.engine == OURS else 2
    return copies * sum(file.stat().st_size for file in files if file.is_file())


def _report(
    args: argparse.Namespace,
    texts: Sequence[Sequence[int]],
    left_out: dict[str, str],
    points: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    settings = {name: getattr(args, name) for name in SETTINGS}
    settings["num_prompts"] = len(texts)
    settings["mean_prompt_tokens"] = sum(map(len, texts)) / len(texts)
    asked = f"{len(texts)} prompts, {args.max_tokens} new tokens at most, {args.rounds} round(s)"
    body = {
        "note": asked,
        "model": args.model,
        "prompts": settings,
        "num_rounds": args.rounds,
        "left_out": left_out,
        "points": list(points),
    }
    return make_result(FORMAT, FORMAT_VERSION, args.argv, ("torch",), body)
