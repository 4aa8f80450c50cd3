"""Build an engine folder from a plan: weights, compiled graphs, tokenizer, contract, rename."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from checkpoint_converters import load_checkpoint
from trtspec.builder.compile import compile_cached, example_inputs, graph_key
from trtspec.builder.locate import cache_root
from trtspec.builder.pair import TOKENIZER_FILES
from trtspec.builder.plan import BuildPlan
from trtspec.config.model import ModelConfig
from trtspec.engine.folder import (
    CONFIG_NAME,
    MODEL_NAME,
    ROLLOUT_NAME,
    TOKENIZER_FOLDER,
    WEIGHTS_NAME,
    EngineConfig,
)
from trtspec.errors import BuildError, TrtspecError
from trtspec.log import logger, progress
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rollout import TreeRollout


def build_engine(plan: BuildPlan, output_dir: Path, force: bool = False) -> Path:
    """Build ``plan`` into ``output_dir``, atomically; a finished equal build is left as it is.

    Raises:
        BuildError: ``output_dir`` holds something else and ``force`` is not set, or a step failed;
            then nothing is left behind.
    """
    output_dir = output_dir.resolve()  # "." has no name to put a scratch folder beside
    if _holds(output_dir, plan):
        logger.info("%s is up to date (%s)", output_dir, plan.fingerprint)
        return output_dir
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())) and not force:
        raise BuildError(
            f"{output_dir} exists and is not this engine; choose another --output_dir, "
            "or pass --force to replace it"
        )
    # A process id alone would meet leftovers of its own: containers give the same ones again.
    name = f".{output_dir.name}.building-{os.getpid()}-{secrets.token_hex(4)}"
    scratch = output_dir.with_name(name)
    try:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(output_dir)
        scratch.mkdir()
        _write_engine(plan, scratch)
        _move_into_place(scratch, output_dir, plan)
    except (OSError, SafetensorError) as error:
        raise BuildError(f"{output_dir} cannot be written: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return output_dir


def cached_engine(plan: BuildPlan) -> Path:
    """The engine for ``plan`` in the user's cache folder, built if it is not there yet."""
    return build_engine(plan, cache_root() / "engines" / plan.fingerprint, force=True)


def _write_engine(plan: BuildPlan, folder: Path) -> None:
    engine = plan.engine
    target = _write_weights(plan.target_dir, engine.target, engine.build.dtype, folder / "target")
    _compile(target, engine, folder / "target" / MODEL_NAME)
    if plan.draft_dir is not None and engine.draft is not None and engine.speculation is not None:
        draft = _write_weights(plan.draft_dir, engine.draft, engine.build.dtype, folder / "draft")
        _compile(draft, engine, folder / "draft" / MODEL_NAME)
        rollout = TreeRollout(
            draft,
            engine.speculation.topk,
            engine.speculation.num_steps,
            engine.speculation.num_draft_tokens,
            engine.build.tokens_per_block,
        )
        _compile(rollout, engine, folder / "draft" / ROLLOUT_NAME)
    # The checkpoint's own config.json goes along: some tokenizers are chosen by its model_type.
    (folder / TOKENIZER_FOLDER).mkdir()
    for name in (*TOKENIZER_FILES, "config.json"):
        if (plan.target_dir / name).is_file():
            shutil.copyfile(plan.target_dir / name, folder / TOKENIZER_FOLDER / name)
    engine.write(folder)


def _write_weights(checkpoint_dir: Path, config: ModelConfig, dtype: str, folder: Path) -> CausalLM:
    """Pack a checkpoint's weights into the folder and return the model that holds them."""
    folder.mkdir()
    with progress(f"pack weights of the {folder.name}"):
        model = CausalLM(config, getattr(torch, dtype))
        model.load_weights(load_checkpoint(checkpoint_dir))
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS_NAME)
    return model


def _compile(module: CausalLM | TreeRollout, engine: EngineConfig, package: Path) -> None:
    if engine.build.backend == "eager":
        return
    rollout = isinstance(module, TreeRollout)
    config = module.model.config if isinstance(module, TreeRollout) else module.config
    dtype = getattr(torch, engine.build.dtype)
    layout = engine.layout
    facts: list[object] = [package.name, dtype, layout]
    if rollout:
        facts.append(engine.speculation)
    inputs = example_inputs(config, dtype, layout, rollout)
    step = f"compile {package.parent.name}/{package.name}"
    with progress(step):
        fresh = compile_cached(
            module, inputs, graph_key(config, facts), package, cache_root() / "compiled"
        )
    if not fresh:
        logger.info("%s: reused a graph compiled before", step)


def _holds(folder: Path, plan: BuildPlan) -> bool:
    if not (folder / CONFIG_NAME).is_file():
        return False
    try:
        return EngineConfig.read(folder).fingerprints.get("engine") == plan.fingerprint
    except TrtspecError:
        return False


def _move_into_place(scratch: Path, output_dir: Path, plan: BuildPlan) -> None:
    """Rename; where a concurrent builder of the same engine was faster, its folder stays: it may be
    in use."""
    if _holds(output_dir, plan):
        return
    if output_dir.exists():
        retired = scratch.with_name(scratch.name + "-old")
        output_dir.rename(retired)
        shutil.rmtree(retired, ignore_errors=True)
    try:
        scratch.rename(output_dir)
    except OSError:
        if not _holds(output_dir, plan):
            raise


def _remove_leftovers(output_dir: Path) -> None:
    """Scratch folders of builds that were killed; those of running builds stay."""
    prefix = f".{output_dir.name}.building-"
    for path in output_dir.parent.iterdir():
        if not path.name.startswith(prefix):
            continue
        pid = path.name.removeprefix(prefix).split("-")[0]
        if not (pid.isdecimal() and _is_running(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
