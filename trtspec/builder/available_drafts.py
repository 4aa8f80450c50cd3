"""The drafts that are available for a target, and the method that each is made for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from trtspec.builder.checkpoints import read_draft, read_own_draft, target_config
from trtspec.builder.locate import embedded_drafts, find_model
from trtspec.config.draft import DraftConfig
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import OWN_MODULES
from trtspec.engine.folder import EngineConfig, is_engine_folder
from trtspec.errors import CheckpointError
from trtspec.speculative.registry import methods


@dataclass(frozen=True)
class FoundDraft:
    """A draft, by the name that a speculative config gives it (``model``)."""

    name: str
    method: str
    config: DraftConfig


def available_drafts(model: str, given: list[str]) -> list[FoundDraft]:
    """The drafts ``given`` by name; otherwise those that come with the model: in an engine folder,
    embedded for an embedded or packaged checkpoint, or as the target's own modules.

    Raises:
        CheckpointError: the model or a given draft cannot be read, or does not fit the target.
    """
    folder = find_model(model)
    if is_engine_folder(folder):
        engine = EngineConfig.read(folder)
        if given:
            raise CheckpointError(
                f"{folder} is an engine folder, which holds its drafts; leave out those given "
                f"({', '.join(given)}), or give the checkpoint that it was built from"
            )
        return [FoundDraft(d.folder, d.speculation.method, d.network) for d in engine.drafts]
    target = target_config(folder)
    if given:
        return [_inspect(name, target) for name in given]
    found = [_inspect(name, target) for name in embedded_drafts(folder)]
    for method in methods().values():
        if not method.by_target:
            continue
        with suppress(CheckpointError):  # the target has none
            own = read_own_draft(folder, method, target)
            found.append(FoundDraft(OWN_MODULES, method.name, own.config))
    return found


def _inspect(name: str, target: ModelConfig) -> FoundDraft:
    draft = read_draft(find_model(name), target)
    return FoundDraft(name, draft.method, draft.config)
