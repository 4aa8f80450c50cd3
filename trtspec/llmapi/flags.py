"""The flags by which a program is told what to run: one table, and what the given ones mean.

A row says under which names a flag is given, which option it is, and what it does. Names are those
of TensorRT-LLM's programs and of their neighbours.

    parser = argparse.ArgumentParser()
    add_flags(parser, "NGRAM")
    args = parser.parse_args()
    config = speculative_config(args, "NGRAM")
    llm = LLM(args.model_dir, config, **options(args, ENGINE))
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trtspec.builder.available_drafts import available_drafts
from trtspec.builder.locate import embedded_checkpoints
from trtspec.builder.packaged import PACKAGED
from trtspec.errors import ConfigError
from trtspec.formats.registry import format_kinds
from trtspec.llmapi import help_texts
from trtspec.llmapi.help_texts import one_of
from trtspec.speculative.registry import NO_METHOD, method_name, methods, methods_taking

ENGINE, SPECULATION, SAMPLING = "engine", "speculation", "sampling"
"""What an option belongs to: the engine and its caches, the speculative config, or
`SamplingParams`."""

Row = tuple[str, str, str | None, Mapping[str, Any]]
"""Names of a flag, its option (a path if nested), its help, and further arguments for argparse."""
LAYERS = (
    "layers whose outputs are written, -1 for the embeddings; or the method that a draft is to be "
    "trained for"
)
_INT, _FLOAT = {"type": int}, {"type": float}
_YES: Mapping[str, Any] = {"action": "store_const", "const": True}
_NO: Mapping[str, Any] = {"action": "store_false", "default": True}


def _model_flags() -> list[Row]:
    of_model = "target: folder, GGUF file, id, engine, or a name: smollm2-135m, trtspec-tiny"
    fraction = "share of the free memory for the KV cache"
    between = "deliver tokens between steps, not while the next one runs"
    return [
        ("--model_dir", "", of_model, {}),
        ("--dtype", "dtype", help_texts.DTYPE, {"default": "auto"}),
        ("--weight_dtype", "weight_dtype", help_texts.weight_dtype(), {}),
        ("--max_batch_size", "max_batch_size", None, _INT),
        ("--max_seq_len", "max_seq_len", None, _INT),
        ("--max_num_tokens", "max_num_tokens", None, _INT),
        ("--backend", "backend", help_texts.backend(), {}),
        ("--device", "device", help_texts.DEVICE, {}),
        ("--tensor_parallel_size --tp_size", "tensor_parallel_size", help_texts.RANKS, _INT),
        ("--kv_cache_dtype", "kv_cache_config.dtype", help_texts.KV_CACHE_DTYPE, {}),
        ("--kv_cache_fraction", "kv_cache_config.free_memory_fraction", fraction, _FLOAT),
        (
            "--disable_kv_cache_reuse",
            "kv_cache_config.enable_block_reuse",
            "do not share equal prefixes",
            _NO,
        ),
        ("--disable_overlap_scheduler", "async_scheduling", between, _NO),
        ("--steps_ahead", "steps_ahead", help_texts.STEPS_AHEAD, _INT),
    ]


def draft_flags() -> list[Row]:
    """Flags for a draft's weights and tokens: the target's names with the prefix ``draft_``."""
    kinds = one_of([*format_kinds()])
    return [
        (
            "--draft_weight_dtype",
            "weight_dtype",
            f"in what a draft keeps its weights: {kinds} or --dtype (default: 4 bits, head too, of "
            "a language model above 100 MB on a CPU; else as they are)",
            {},
        ),
        (
            "--draft_weight_group_size",
            "weight_group_size",
            "input features that share a scale of them",
            _INT,
        ),
        (
            "--draft_head_weight_dtype",
            "head_weight_dtype",
            "in what a draft keeps its head (default: as --draft_weight_dtype)",
            {},
        ),
        (
            "--draft_activation_dtype",
            "activation_dtype",
            "in what these weights of a draft are multiplied",
            {},
        ),
        (
            "--vocabulary --speculative_token_map",
            "vocabulary",
            "tokens that a draft proposes, to which its head is cut: a number (those of the lowest "
            "ids, or the most frequent of --vocabulary_text), a file of token ids, or auto",
            {},
        ),
        (
            "--vocabulary_text",
            "vocabulary_text",
            "file of plain text in which --vocabulary counts tokens (auto without it: what the "
            "target writes itself)",
            {},
        ),
        (
            "--draft_window --speculative_draft_window_size",
            "draft_window",
            "newest tokens that a draft's attention sees, beside the first ones; its cache lets go "
            "of what lies between (default: it sees all)",
            _INT,
        ),
        (
            "--draft_sinks --speculative_draft_sink_size",
            "draft_sinks",
            "first tokens of a text that it sees with them, in whole blocks (default: 4)",
            _INT,
        ),
        (
            "--draft_tensor_parallel_size --speculative_draft_tensor_parallel_size",
            "draft_tensor_parallel_size",
            "processes that a draft is split over: 1 (default), or as many as its target",
            _INT,
        ),
        (
            "--draft_p_min --spec_draft_p_min --p_min",
            "p_min",
            "least probability that a draft model gives a token behind the one before it; below it "
            "nothing more is drafted",
            _FLOAT,
        ),
    ]


def _speculation_flags(default: str) -> list[Row]:
    algorithms = ", ".join([*(name.upper() for name in _by_name()), NO_METHOD.upper()])
    example = '{"method": "hybrid", "drafters": [{"method": "suffix"}, {"method": "eagle3", '
    return [
        ("--spec_decode_algo", "", f"one of {algorithms}; without it {default}", {}),
        (
            "--speculative_config",
            "",
            f'all of the speculation as JSON, such as {example}"model": ..., '
            '"num_speculative_tokens": 5}]}',
            {},
        ),
        (
            "--draft_model_dir --eagle_model_dir --medusa_model_dir",
            "model",
            "draft model (PARD as well), EAGLE, P-EAGLE or DFlash head, Medusa heads: folder, id "
            "or embedded name",
            {},
        ),
        (
            "--spec_decode_max_draft_len --num_steps",
            "max_draft_len",
            "K of a chain, depth D of a tree (default 5)",
            _INT,
        ),
        (
            "--dynamic_tree_max_topK --eagle_topk",
            "topk",
            "k of a tree (k, D, N); a chain without it",
            _INT,
        ),
        (
            "--num_draft_tokens",
            "num_draft_tokens",
            "N of a tree: rows verified, the root included",
            _INT,
        ),
        ("--use_dynamic_tree", "use_dynamic_tree", "a tree is wanted (implied by its k)", _YES),
        (
            "--eagle_choices",
            "eagle_choices",
            f"static tree of {one_of(methods_taking('eagle_choices'))}, such as '[[0],[1],[0,0]]'",
            {},
        ),
        (
            "--medusa_choices",
            "medusa_choices",
            "static tree of MEDUSA in place of the default for its heads",
            {},
        ),
        ("--num_medusa_heads", "num_medusa_heads", "heads of MEDUSA to draft with", _INT),
        (
            "--use_mtp_vanilla",
            "use_mtp_vanilla",
            "whether each module of MTP drafts at a depth of its own, or the first at every depth",
            {"action": argparse.BooleanOptionalAction},
        ),
        *draft_flags(),
        ("--max_matching_ngram_size", "max_matching_ngram_size", "longest n of NGRAM", _INT),
        (
            "--suffix_decoding_max_tree_depth",
            "suffix_decoding_max_tree_depth",
            "match and draft together, of SUFFIX",
            _INT,
        ),
        (
            "--speculative_adaptive",
            "adaptive",
            "verify as many drafts as pay in each step, by measured times and acceptance",
            _YES,
        ),
        (
            "--capture_layers",
            "capture_layers",
            f"EXTRACT_HIDDEN_STATES: {LAYERS}",
            {"type": layer, "nargs": "+"},
        ),
        (
            "--shared_storage_path",
            "shared_storage_path",
            "folder for the files of EXTRACT_HIDDEN_STATES",
            {},
        ),
    ]


def _generation_flags() -> list[Row]:
    seed = "seed of every prompt (with temperature > 0)"
    mean = "print the mean log probability of each text"
    at_a_time = "prompts at a time, interleaved without and with speculation; default all in one"
    return [
        ("--prompt", "", "one or more prompts", {"nargs": "+"}),
        ("--max_tokens", "max_tokens", "default 64; 128 of SmolLM2's own prompts", _INT),
        ("--concurrency", "", at_a_time, _INT),
        ("--temperature", "temperature", None, {**_FLOAT, "default": 0.0}),
        ("--top_k", "top_k", None, {**_INT, "default": 0}),
        ("--top_p", "top_p", None, {**_FLOAT, "default": 1.0}),
        ("--seed", "seed", seed, {**_INT, "default": 0}),
        ("--n", "n", "sequences per prompt", {**_INT, "default": 1}),
        ("--logprobs", "logprobs", mean, {"action": "store_const", "const": 0}),
        ("--apply_chat_template", "", None, {"action": "store_true"}),
        ("--print_iter_log", "", "log builds and engine loading", {"action": "store_true"}),
    ]


def add_flags(parser: argparse.ArgumentParser, default_method: str) -> None:
    """Add all of them. ``default_method``: how the help describes the default of
    `speculative_config`."""
    for title, of, rows in (
        ("model", ENGINE, _model_flags()),
        ("speculation", SPECULATION, _speculation_flags(default_method)),
        ("generation", SAMPLING, _generation_flags()),
    ):
        group = parser.add_argument_group(title)
        add_rows(group.add_argument, of, rows)


def layer(text: str) -> int | str:
    """A value of ``--capture_layers``: a number if it is one, else a name that the config
    checks."""
    try:
        return int(text)
    except ValueError:
        return text


def add_rows(add: Callable[..., Any], of: str, rows: Iterable[Row]) -> None:
    """Add a flag for each row with options ``of`` something. ``add``: `add_argument` of a parser or
    group."""
    for names, option, text, how in rows:
        first, *others = names.split()
        name = first.removeprefix("--")
        dest = f"{of}.{option}" if option else name
        takes: dict[str, Any] = {} if "action" in how else {"metavar": name.upper()}
        add(first, *others, dest=dest, help=text, **takes, **how)


def options(args: argparse.Namespace, of: str) -> dict[str, Any]:
    """The options of `ENGINE`, `SPECULATION`, `SAMPLING` (or of another name given to `add_rows`)
    that were given or have a default."""
    found: dict[str, Any] = {}
    for dest, value in vars(args).items():
        if dest.startswith(f"{of}.") and value is not None:
            *outer, last = dest.split(".")[1:]
            place = found
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = value
    return found


def speculative_config(args: argparse.Namespace, default: str) -> dict[str, Any] | None:
    """The speculative config that the flags describe, as `LLM` takes it; None for no speculation.
    Without a draft, the embedded one for the target and method is used. ``default``: the method if
    none is named.

    Raises:
        ConfigError: flags exclude each other, the method is unknown, or it lacks a draft.
    """
    given = options(args, SPECULATION)
    if args.speculative_config is not None:
        return _whole_config(args, given)
    algorithm = args.spec_decode_algo or default
    if algorithm.lower() == NO_METHOD:
        return None
    try:
        method = methods()[method_name(algorithm)]
    except ConfigError as error:
        raise ConfigError(f"--spec_decode_algo {algorithm!r}: {error}") from error
    config = method.options
    if method.lists_others:
        raise ConfigError(
            f"--spec_decode_algo {algorithm.upper()}: give it in --speculative_config"
        )
    if method.needs_draft and "model" not in given:
        draft = _embedded_draft(args.model_dir, method.draft_method)
        if draft is None:
            raise ConfigError(f"--spec_decode_algo {algorithm.upper()} needs --draft_model_dir")
        given["model"] = draft
    if config.usual_steps is not None and "eagle_choices" not in given:
        given.setdefault("max_draft_len", config.usual_steps)
    if config.usual_rows is not None:
        given.setdefault("num_draft_tokens", config.usual_rows)
    return {"method": method.name, **given}


def _whole_config(args: argparse.Namespace, given: Mapping[str, Any]) -> dict[str, Any]:
    if args.spec_decode_algo is not None:
        raise ConfigError("--speculative_config names the method; leave --spec_decode_algo out")
    if given:
        raise ConfigError(
            "--speculative_config says all of the speculation; write "
            f"{', '.join(f'`{name}`' for name in given)} into it, and leave the flag out"
        )
    try:
        config: dict[str, Any] = json.loads(args.speculative_config)
    except ValueError as error:
        raise ConfigError(f"--speculative_config is not JSON: {error}") from error
    return config


def _embedded_draft(model: str | None, method: str) -> str | None:
    """The embedded draft for this method of an embedded or packaged target."""
    if model not in (*embedded_checkpoints(), *PACKAGED):
        return None
    assert model is not None
    found = (draft for draft in available_drafts(model, []) if draft.method == method)
    return next((draft.name for draft in found), None)


def _by_name() -> list[str]:
    """The config for a named method, with draft and numbers."""
    return [name for name, method in methods().items() if not method.lists_others]
