"""Engines of synthetic checkpoints: compiled like all others, with weights that are generated on
the device when they are opened, and are in no file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trtspec.backends.shape import TARGET, WEIGHTS_NAME
from trtspec.bench.synthetic.network import Synthetic, SyntheticTensors
from trtspec.bench.synthetic.sizes import Sizes
from trtspec.builder.build_engine import build_engine
from trtspec.builder.checkpoints import load_target, read_draft, target_config
from trtspec.builder.locate import cache_root, find_model
from trtspec.builder.plan import BuildPlan
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.engine import graphs
from trtspec.engine.folder import EngineConfig
from trtspec.engine.memory import in_large_pages
from trtspec.engine.open import WeightReader
from trtspec.errors import EngineError
from trtspec.llmapi.engines import plan_engine
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.options import LLMConfig
from trtspec.speculative.options import parse_speculative_config

RECIPE = "synthetic.json"


def synthetic_engine(
    model: str | Path,
    sizes: Sizes,
    speculation: Mapping[str, Any] | DecodingConfig | None,
    **options: Any,
) -> Path:
    """The engine folder of a model at other sizes, and of its drafts, in the user's cache folder,
    built if necessary. ``options``: those of `LLM`.

    Raises:
        ConfigError: the model does not fit into the sizes, or is not of `Synthetic`'s kind.
        CheckpointError, BuildError: see `build`.
    """
    wanted = parse_speculative_config(speculation)
    small = plan_engine(find_model(model), LLMConfig(**options), wanted)
    wide, own = Synthetic(small.engine.target, sizes), small.engine.drafts
    drafts = tuple(replace(draft, network=wide.head_over(draft.network)) for draft in own)
    paths = {d.folder: str(c.path) for d, c in zip(drafts, small.drafts, strict=True)}
    recipe = {"target": str(small.target_dir), "drafts": paths, "sizes": asdict(sizes)}
    code = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
    key = json.dumps([small.fingerprint, asdict(sizes), code])
    fingerprint = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    known = {**small.engine.fingerprints, "engine": fingerprint}
    engine = replace(small.engine, target=wide.config, drafts=drafts, fingerprints=known)
    folder, write = cache_root() / "engines" / fingerprint, partial(_write, recipe)
    return build_engine(replace(small, engine=engine), folder, force=True, write_weights=write)


def open_llm(folder: Path, speculation: Any, **options: Any) -> LLM:
    """An engine folder of either kind, opened."""
    return (SyntheticLLM if _recipe(folder) else LLM)(folder, speculation, **options)


def source_of(folder: Path, engine: EngineConfig) -> ModelConfig:
    """The target that an engine's drafts were made for; for a synthetic one, the small model."""
    recipe = _recipe(folder)
    return target_config(Path(recipe["target"])) if recipe else engine.target


def weights_of(folder: Path, engine: EngineConfig) -> WeightReader | None:
    """Makes the weights of a synthetic engine; None for a folder that has them in files."""
    recipe = _recipe(folder)

    def read(name: str, device: str) -> dict[str, Tensor]:
        made = _made(engine, recipe, name, device)
        return in_large_pages(made, (str(folder), name)) if device == "cpu" else made

    return read if recipe and not engine.weights else None


class SyntheticLLM(LLM):
    """An `LLM` of `synthetic_engine`'s folder."""

    _source, _weights = staticmethod(source_of), staticmethod(weights_of)


def _recipe(folder: Path) -> dict[str, Any]:
    """What a synthetic engine's weights are made from; empty for another engine."""
    file = folder / RECIPE
    return dict(json.loads(file.read_text())) if file.is_file() else {}


def _write(recipe: Mapping[str, Any], plan: BuildPlan, folder: Path) -> None:
    """The recipe, and weight files where a backend finishes its artifacts over these."""
    engine = plan.engine
    for name in (TARGET, *(draft.folder for draft in engine.drafts)):
        (folder / name).mkdir()
        if not engine.backend.runs_ops:
            made = _made(engine, recipe, name, "cpu")
            files = {key: tensor.contiguous() for key, tensor in made.items()}
            save_file(files, folder / name / WEIGHTS_NAME)
    (folder / RECIPE).write_text(json.dumps(recipe) + "\n")


@torch.no_grad()
def _made(
    engine: EngineConfig, recipe: Mapping[str, Any], name: str, device: str
) -> dict[str, Tensor]:
    """The weights of a network of the engine, as a weight file would have them."""
    source = _same(load_target(Path(recipe["target"])), engine.fingerprints[TARGET])
    wide, kept = (
        Synthetic(source.config, Sizes(**recipe["sizes"])),
        (graphs.built_dtype(engine), device),
    )
    target: Any = SyntheticTensors(wide, source.tensors, *kept)
    if name == TARGET:
        with torch.device(device):
            model = graphs.target_module(engine)
        model.load_weights(replace(source, config=engine.target, tensors=target))
        return model.state_dict()
    draft = next(each for each in engine.drafts if each.folder == name)
    checkpoint = read_draft(Path(recipe["drafts"][name]), source.config)
    found = _same(checkpoint, engine.fingerprints[name])
    head: Any = SyntheticTensors(wide.beside(found.config), found.tensors, *kept, is_head=True)
    with torch.device(device):
        module, constants = graphs.draft_module(engine, draft), graphs.draft_constants(draft)
    draft.kind.load(module, replace(found, config=draft.network, tensors=head), target)
    return {**graphs.own_state(module), **constants}


def _same(source: Any, fingerprint: str) -> Any:
    """The source, if the engine was made from it; else EngineError."""
    if source.fingerprint != fingerprint:
        raise EngineError(
            f"{source.path} has fingerprint {source.fingerprint}, the synthetic engine was made of "
            f"{fingerprint}; make the engine again"
        )
    return source
