"""TargetDrafts: the drafts available for a target, each opened once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from checkpoint_converters import DraftCheckpoint, read_adapter
from trtspec.builder.checkpoints import read_draft, read_own_draft
from trtspec.builder.locate import find_model
from trtspec.builder.token_lists import token_list
from trtspec.config.decoding import DecodingConfig
from trtspec.config.model import ModelConfig
from trtspec.config.tree_decoding import OWN_MODULES, TreeDecodingConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.speculative.base import DraftMethod
from trtspec.speculative.registry import method_name, method_of, methods, trainable_methods


class TargetDrafts:
    """The drafts that a config may name; see `DraftsAtHand`.

    It caches what it opens: everything about a draft's shape, files or weights is asked here.
    """

    def __init__(
        self,
        target: ModelConfig,
        folder: Path | None = None,
        tokenizer: Path | None = None,
        built: DecodingConfig | None = None,
        by_pass: bool = False,
    ) -> None:
        """``folder``: the target's checkpoint, if available. ``tokenizer``: its tokenizer's
        location, if elsewhere. ``built``: the config that an engine folder holds drafts for.
        ``by_pass``: see `Backend.drafts_by_pass`."""
        self._target = target
        self._folder = folder
        self._tokenizer = tokenizer
        self._built = built
        self._by_pass = by_pass
        self._opened: dict[tuple[Path, Path | None, str | None], DraftCheckpoint] = {}

    @property
    def built(self) -> DecodingConfig | None:
        return self._built

    @property
    def by_pass(self) -> bool:
        return self._by_pass

    def method_for(self, model: str | Path) -> type[TreeDecodingConfig]:
        name = self._own() if model == OWN_MODULES else self._open(find_model(model), None).method
        method = methods()[name].options
        assert issubclass(method, TreeDecodingConfig), "these have drafts"
        return method

    def training_layers(self, method: str) -> tuple[int, ...]:
        recipe = methods()[method_name(method)].recipe
        if recipe is None:
            raise ConfigError(
                f"no drafts are trained for method {method!r}; name one of "
                f"{', '.join(trainable_methods())}, or numbers of layers"
            )
        return recipe.recorded_layers(self._target)

    def open(self, config: TreeDecodingConfig) -> DraftCheckpoint:
        """The draft that a config names.

        Raises:
            CheckpointError: it, or an adapter to merge into it, cannot be found or read, or does
                not fit.
            ConfigError: a draft is named where the target itself is meant, or the tokens for a cut
                head cannot be determined.
        """
        found, adapter = self._of(config), config.merged_adapter
        return found if adapter is None else found.merged(read_adapter(adapter, found.config))

    def _of(self, config: TreeDecodingConfig) -> DraftCheckpoint:
        model = config.speculative_model
        folder = self._folder if model == OWN_MODULES else None
        method = method_of(config)
        if method.copies_target and model != OWN_MODULES:
            raise ConfigError(
                f"speculative_model={model!r}: by method {method.name!r} {method.title} drafts, "
                "and no other checkpoint; leave speculative_model out"
            )
        # One checkpoint may hold a target and be a draft model: only the method tells these apart.
        own = method if method.by_target else None
        path = folder or find_model(model)
        if config.cut is None:
            return self._open(path, None, own)
        if config.cut.file is not None:
            return self._open(path, config.cut.file, own)
        whole = self._open(path, None, own)
        steps = config.max_draft_len
        network, _ = config.network(whole.config)
        tokens, why = token_list(
            config.cut, self._target, self._folder, self._tokenizer, network, steps
        )
        found = whole if tokens is None else self._open(path, tokens, own)
        return replace(found, notes=(*found.notes, why))

    def _own(self) -> str:
        """The method for what the target brings: networks in its checkpoint, otherwise a copy of
        it."""
        for method in methods().values():
            if method.by_target and self._folder is not None:
                with suppress(CheckpointError):  # the target has none
                    self._open(self._folder, None, method)
                    return method.name
        return next(method.name for method in methods().values() if method.copies_target)

    def _open(
        self, folder: Path, token_map: Path | None, own: DraftMethod | None = None
    ) -> DraftCheckpoint:
        key = folder, token_map, own.name if own else None
        if key not in self._opened:
            self._opened[key] = (
                read_draft(folder, self._target, token_map)
                if own is None
                else read_own_draft(folder, own, self._target, token_map)
            )
        return self._opened[key]
