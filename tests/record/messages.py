"""Bad inputs of many kinds, and what a user is told about each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trtspec import LLM, SamplingParams, TrtspecError, build

from ..e2e.every_method import LIMITS
from ..e2e.helpers import chain
from ..e2e.hybrid_drafts import hybrid
from .adapter import CONFIG_NAME, run_build_command
from .bad_values import CONFIGS, KEYS, OPTIONS, SAMPLING
from .observe import Workshop

Case = Callable[[], object]
EAGER: dict[str, Any] = {**LIMITS, "backend": "eager"}
_WEIGHTS = "model.safetensors"

EVERY_METHOD: Mapping[str, str] = {
    "ngram": "ngram",
    "suffix": "suffix",
    "draft_model": "tree",
    "eagle": "eagle tree",
    "eagle3": "eagle3",
    "mtp": "mtp tree",
    "medusa": "medusa",
    "pard": "pard",
    "pard2": "pard2",
    "p_eagle": "p_eagle",
    "dflash": "dflash",
    "ddtree": "ddtree",
    "jetspec": "jetspec",
    "dspark": "dspark",
    "dflash2": "dflash2",
    "assistant": "assistant",
    "self": "self",
    "hybrid": "hybrid",
    "auto": "auto with a draft",
    "extract_hidden_states": "extract_hidden_states",
}
"""An entry of the table of methods for each."""

_ELSEWHERE = (r"cannot be (?:read|loaded) \(", r"cannot be read as JSON: ", r"is not JSON \(")
"""Beginnings of what another library says."""


def messages(shop: Workshop) -> dict[str, dict[str, str]]:
    """What is said of every bad input, by group and case."""
    groups: dict[str, dict[str, Case]] = {
        "speculative_config": _configs(shop),
        **{f"speculative_config of {name}": _keys(shop, name) for name in EVERY_METHOD},
        "drafts and targets": _pairs(shop),
        "options": _options(shop),
        "checkpoints": _checkpoints(shop),
        "engine folders": _engine_folders(shop),
        "sampling": _sampling(),
        "requests": _requests(shop),
    }
    said = {
        group: {case: _said(shop, call) for case, call in cases.items()}
        for group, cases in groups.items()
    }
    said["trtspec-build"] = _commands(shop)
    return said


def _said(shop: Workshop, call: Case) -> str:
    try:
        call()
    except TrtspecError as error:
        return _plain(shop, f"{type(error).__name__}: {error}")
    except Exception as error:  # it is part of the record that such a thing is not refused by name
        return _plain(shop, f"not refused by name: {type(error).__name__}: {error}")
    return "no error"


def _plain(shop: Workshop, text: str) -> str:
    """Without what another machine or another version of a library would say otherwise."""
    text = text.replace(str(shop.models.root), "<models>").replace(str(shop.root), "<root>")
    text = re.sub(r"[^\s(]*/engines/[0-9a-f]{32}", "<engine>", text)
    text = re.sub(r"\b[0-9a-f]{16,}\b", "<hash>", text)
    text = re.sub(r"\(here [^)]*\)", "(here <here>)", text)
    for before in _ELSEWHERE:
        text = re.sub(f"({before}).*?(?=\\); |$)", r"\1<what a library says>", text)
    return text


def _configs(shop: Workshop) -> dict[str, Case]:
    checkpoint = shop.models.folder("llama")
    return {
        case: lambda config=config: LLM(checkpoint, config, **EAGER)  # type: ignore[misc]
        for case, config in CONFIGS.items()
    }


def _keys(shop: Workshop, method: str) -> dict[str, Case]:
    checkpoint, speculation = shop.made(EVERY_METHOD[method])
    return {
        case: lambda bad=bad: build(checkpoint, {**speculation, **bad}, **EAGER)  # type: ignore[misc]
        for case, bad in KEYS.items()
    }


def _pairs(shop: Workshop) -> dict[str, Case]:
    llama, tied = shop.models.folder("llama"), shop.models.folder("llama3_tied")
    root = _fresh(shop.root / "pairs")
    drafts = {name: shop.made(name)[1] for name in ("tree", "eagle", "eagle3", "dflash", "p_eagle")}
    drafts |= {name: shop.made(name)[1] for name in ("medusa", "pard")}
    models = {name: config["model"] for name, config in drafts.items()}
    small = _changed(shop.models.draft("llama"), root / "vocabulary", vocab_size=100)
    narrow = _changed(Path(models["eagle3"]), root / "narrow", hidden_size=32)
    deep = _changed(Path(models["eagle3"]), root / "deep", None)
    config = json.loads((deep / CONFIG_NAME).read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [0, 7]
    (deep / CONFIG_NAME).write_text(json.dumps(config))

    def of(method: str, model: Any, checkpoint: Path = llama, **shape: Any) -> Case:
        options = {"num_speculative_tokens": 3, **shape}
        return lambda: build(
            checkpoint, {"method": method, "model": str(model), **options}, **EAGER
        )

    return {
        "no such draft": of("draft_model", root / "nowhere"),
        "a draft with another vocabulary": of("draft_model", small),
        "an EAGLE head as a draft model": of("draft_model", models["eagle"]),
        "an EAGLE-1 head as EAGLE-3": of("eagle3", models["eagle"]),
        "an EAGLE-3 head as EAGLE-1": of("eagle", models["eagle3"]),
        "an EAGLE-3 head as P-EAGLE": of("p_eagle", models["eagle3"]),
        "an EAGLE-3 head of another width": of("eagle3", narrow),
        "an EAGLE-3 head of layers that are not there": of("eagle3", deep),
        "a draft model as an EAGLE head": of("eagle3", models["tree"]),
        "a draft model as PARD": of("pard", models["tree"]),
        "a draft model as DFlash": of("dflash", models["tree"]),
        "a draft model as Medusa": of("medusa", models["tree"]),
        "more Medusa heads than there are": of(
            "medusa", models["medusa"], tied, num_medusa_heads=9
        ),
        "longer drafts than a DFlash block": of(
            "dflash", models["dflash"], num_speculative_tokens=9
        ),
        "another mask token": of("pard", models["pard"], mask_token_id=7),
        "MTP of a target without modules": lambda: build(
            llama, {"method": "mtp", "num_speculative_tokens": 3}, **EAGER
        ),
        "more MTP modules than there are": lambda: build(
            shop.made("modules")[0],
            {"method": "mtp", "num_speculative_tokens": 5, "use_mtp_vanilla": True},
            **EAGER,
        ),
        "a hybrid whose second draft does not fit": lambda: build(
            llama,
            hybrid({"method": "suffix"}, chain(small, 3)),
            **EAGER,
        ),
        "states of layers that are not there": lambda: build(
            llama, {"method": "extract_hidden_states", "capture_layers": [9]}, **EAGER
        ),
    }


def _options(shop: Workshop) -> dict[str, Case]:
    checkpoint = shop.models.folder("llama")
    return {
        case: lambda given=given: LLM(  # type: ignore[misc]
            checkpoint, **{"backend": "eager", "skip_tokenizer_init": True, **given}
        )
        for case, given in OPTIONS.items()
    }


def _checkpoints(shop: Workshop) -> dict[str, Case]:
    source, root = shop.models.folder("llama"), _fresh(shop.root / "checkpoints")

    def copy(name: str, **config: Any) -> Path:
        return _changed(source, root / name, **config)

    def tensors(name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
        folder = copy(name)
        found = load_file(folder / _WEIGHTS)
        change(found)
        save_file(found, folder / _WEIGHTS, {"format": "pt"})
        return folder

    broken, cut, bare = copy("broken"), copy("cut"), copy("bare")
    (broken / CONFIG_NAME).write_text("{")
    data = (cut / _WEIGHTS).read_bytes()
    (cut / _WEIGHTS).write_bytes(data[: len(data) // 2])
    (bare / _WEIGHTS).unlink()
    (root / "empty").mkdir()
    norm = "model.norm.weight"
    folders = {
        "no such folder": root / "nowhere",
        "an empty folder": root / "empty",
        "a broken config.json": broken,
        "an unknown architecture": copy("alien", architectures=["AlienForCausalLM"]),
        "an unknown activation": copy("tanh", hidden_act="tanh"),
        "an unknown rope": copy("rope", rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
        "heads that do not divide": copy("heads", num_key_value_heads=3),
        "no layers": copy("flat", num_hidden_layers=0),
        "quantised by others": copy("hqq", quantization_config={"quant_method": "hqq"}),
        "no weights": bare,
        "weights cut short": cut,
        "a missing tensor": tensors("missing", lambda t: t.pop(norm)),
        "an unused tensor": tensors("unused", lambda t: t.update(spam=torch.zeros(2))),
        "a tensor of another shape": tensors("shape", lambda t: t.update({norm: torch.ones(7)})),
        "a tensor of integers": tensors(
            "integers", lambda t: t.update({norm: torch.ones(64, dtype=torch.int32)})
        ),
    }
    return {
        case: lambda folder=folder: build(folder, **EAGER)  # type: ignore[misc]
        for case, folder in folders.items()
    }


def _engine_folders(shop: Workshop) -> dict[str, Case]:
    checkpoint, speculation = shop.made("eagle3")
    root = _fresh(shop.root / "engines-of-messages")
    source = build(checkpoint, speculation, root / "engine", **EAGER)
    config = json.loads((source / CONFIG_NAME).read_text())
    without = {key: value for key, value in config.items() if key != "build"}

    def copy(name: str, content: Any = None) -> Path:
        folder = Path(shutil.copytree(source, root / name))
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / CONFIG_NAME).write_text(text)
        return folder

    def opened(folder: Path, speculation: Any = None, **options: Any) -> Case:
        return lambda: LLM(folder, speculation, skip_tokenizer_init=True, **options)

    compiled = {**config["build"], "backend": "aoti"}
    elsewhere = {**config["environment"], "torch": "1.0", "machine": "vax", "vector_isa": "none"}
    cut, bare, no_draft = copy("cut"), copy("bare"), copy("no-draft")
    for name, length in (("target", 500), ("draft", 0)):
        file = (cut if length else no_draft) / name / "weights.safetensors"
        file.write_bytes(file.read_bytes()[:length])
    (bare / "target" / "weights.safetensors").unlink()
    graphs = copy("graphs", {**config, "build": compiled})
    smaller = {**speculation, "num_speculative_tokens": 2, "num_draft_tokens": 7}
    return {
        "another format": opened(copy("format", {**config, "format_version": 1})),
        "a part of the contract missing": opened(copy("part", without)),
        "an unknown key of the build": opened(
            copy("key", {**config, "build": {**config["build"], "spam": 1}})
        ),
        "no JSON": opened(copy("json", "{")),
        "compiled elsewhere": opened(
            copy("elsewhere", {**config, "build": compiled, "environment": elsewhere})
        ),
        "without its graphs": opened(graphs),
        "without its weights": opened(bare),
        "weights cut short": opened(cut),
        "a draft cut short": opened(no_draft),
        "drafts that it was not built for": opened(
            source, {**chain(shop.models.draft("llama"), 3)}
        ),
        "a longer draft": opened(source, {**speculation, "num_speculative_tokens": 4}),
        "a wider tree": opened(source, {**speculation, "topk": 4}),
        "more rows": opened(source, {**speculation, "num_draft_tokens": 11}),
        "a chain of its tree": opened(
            source, {**speculation, "topk": 1, "num_draft_tokens": 4}
        ),
        "a smaller tree of another draft": opened(source, {**smaller, "model": str(bare)}),
        "states that it does not hand out": opened(
            source, {"method": "extract_hidden_states", "capture_layers": [1]}
        ),
        "more requests": opened(source, max_batch_size=64),
        "longer sequences": opened(source, max_seq_len=4096),
        "another dtype": opened(source, dtype="bfloat16"),
        "another backend": opened(source, backend="onnx"),
        "other blocks": opened(source, tokens_per_block=4),
        "int8 weights": opened(source, weight_dtype="int8"),
        "a build into it of another engine": lambda: build(
            checkpoint, None, source, **EAGER
        ),
    }  # fmt: skip


def _sampling() -> dict[str, Case]:
    return {
        case: lambda given=given: SamplingParams(**given)  # type: ignore[misc]
        for case, given in SAMPLING.items()
    }


def _requests(shop: Workshop) -> dict[str, Case]:
    llm = LLM(shop.models.folder("llama"), **EAGER, skip_tokenizer_init=True)
    prompts: dict[str, tuple[Any, Any]] = {
        "an empty prompt": ({"prompt_token_ids": []}, None),
        "a text without a tokenizer": ("text", None),
        "a token that is not there": ([5, 203], None),
        "a negative token": ([-1], None),
        "a prompt of floats": ([1.5], None),
        "an unknown key of a prompt": ({"spam": [1]}, None),
        "a prompt as long as the model": ([5] * 128, None),
        "a bias of a token that is not there": ([5], SamplingParams(logit_bias={999: 1.0})),
        "a stop string without a tokenizer": ([5], SamplingParams(stop=["x"])),
        "options that are none": ([5], {"max_tokens": 4}),
        "fewer options than prompts": ([[5], [6]], [SamplingParams()]),
    }
    cases: dict[str, Case] = {
        case: lambda given=given: llm.generate(*given)  # type: ignore[misc]
        for case, given in prompts.items()
    }
    return {**cases, "after a shutdown": lambda: (llm.shutdown(), llm.generate([5]))}


def _commands(shop: Workshop) -> dict[str, str]:
    given = ["--checkpoint_dir", str(shop.models.folder("llama")), "--backend", "eager"]
    output = ["--output_dir", str(shop.root / "of-a-command")]
    commands = {
        "no output folder": given,
        "an unknown flag": [*given, *output, "--spam"],
        "an unknown mode": [*given, *output, "--speculative_decoding_mode", "egale"],
        "a draft length without a mode": [*given, *output, "--max_draft_len", "4"],
        "a report of another backend": [*given, *output, "--report"],
        "no such checkpoint": ["--checkpoint_dir", str(shop.root / "nowhere"), *output],
    }
    return {case: _plain(shop, run_build_command(args)) for case, args in commands.items()}


def _changed(source: Path, folder: Path, *nothing: None, **config: Any) -> Path:
    """A copy of a checkpoint with other values in its config.json."""
    shutil.copytree(source, folder)
    own = json.loads((folder / CONFIG_NAME).read_text())
    (folder / CONFIG_NAME).write_text(json.dumps({**own, **config}))
    return folder


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
