"""TargetDrafts: the drafts at hand for a target, each opened once."""

from __future__ import annotations

from pathlib import Path

from checkpoint_converters import DraftCheckpoint, read_draft, read_mtp
from trtspec.builder.locate import find_model
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import OWN_MODULES, TreeDecodingConfig
from trtspec.speculative.registry import method_of, methods


class TargetDrafts:
    """What a config may name as a draft; see `DraftsAtHand`.

    What is opened is kept: whoever needs a draft's shape, its files or its weights asks here.
    """

    def __init__(
        self, target: ModelConfig, folder: Path | None = None, built: DecodingConfig | None = None
    ) -> None:
        """``folder``: of the target's checkpoint, where it is at hand. ``built``: what an engine
        folder holds drafts for."""
        self._target = target
        self._folder = folder
        self._built = built
        self._opened: dict[tuple[bool, Path, Path | None], DraftCheckpoint] = {}

    @property
    def built(self) -> DecodingConfig | None:
        return self._built

    def method_for(self, model: str | Path) -> type[TreeDecodingConfig]:
        checkpoint = self._open(False, find_model(model), None)
        method = methods()[checkpoint.config.method].options
        assert issubclass(method, TreeDecodingConfig), "these have drafts"
        return method

    def open(self, config: TreeDecodingConfig) -> DraftCheckpoint:
        """The draft that a config names.

        Raises:
            CheckpointError: it cannot be found or read, or does not fit the target.
        """
        model = config.speculative_model
        folder = self._folder if model == OWN_MODULES else None
        in_target = method_of(config).in_target
        return self._open(in_target, folder or find_model(model), config.token_map)

    def _open(self, in_target: bool, folder: Path, token_map: Path | None) -> DraftCheckpoint:
        key = in_target, folder, token_map
        if key not in self._opened:
            # What is there besides such modules is a target, which only the method tells apart
            # from a draft model.
            read = read_mtp if in_target else read_draft
            self._opened[key] = read(folder, self._target, token_map)
        return self._opened[key]
