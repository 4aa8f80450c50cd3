"""DraftMethod: one speculative method, as all others know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trtspec.config.decoding import DecodingConfig
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.speculative.draft_kind import DraftKind
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.recipe import TrainingRecipe

Parser = Callable[[Any], DecodingConfig | None]
"""Makes a config of what a user wrote; see `parse_speculative_config`."""


@dataclass(frozen=True)
class Steps:
    """What steps may become: the target, most requests and most rows of one."""

    target: CountedEngine
    max_requests: int
    max_rows: int


@dataclass(frozen=True)
class Recording:
    """What is asked of a method that writes the target's hidden states to files.

    transfer: what vLLM's ``kv_transfer_config`` is read as. captured_layers: from its config and
    the target's number of layers, those whose outputs are written; ConfigError if there are no such
    layers. over_engine: the config over an engine that hands out these; ConfigError if it asks for
    others. ready: the config with what ``kv_transfer_config`` says, or None of it, ready to run;
    ConfigError if what it needs of the machine is not there.
    """

    transfer: type[Any]
    captured_layers: Callable[[Any, int], tuple[int, ...]]
    over_engine: Callable[[Any, tuple[int, ...]], DecodingConfig]
    ready: Callable[[Any, Any], DecodingConfig]


@dataclass(frozen=True)
class DraftMethod:
    """All that is asked of a method: by the registry, which has one of these for each.

    options: the class of its config, which has the method's name and says by its key rules what
    becomes of the options of neighbouring engines. title: what users call it. spellings: what these
    engines call it, without case, "_" and "-"; ending: how the other names end that mean it.
    model_words: what their users write as the model where the method has none. parallel_of: the
    config whose method becomes this one by vLLM's `parallel_drafting`.

    prepare: what becomes of a mapping of options before its config is made of them; it is given a
    parser for the configs that lie in them. recording: of one that writes hidden states.
    over_drafts: of one whose drafts are other methods', its config for the folders of an engine's
    drafts, one for each member with a network, in their order.

    needs: what its drafter will ask for, known from the config before any engine is loaded; None: a
    method that others draft for (see `DecodingConfig.members`). make: the drafter, from the config
    and a `DraftRuntime`, None unless the needs say that it has an engine.

    kinds: the networks that draft for it; reader: of its checkpoints; both but for those that
    another method has. in_target: how its networks lie in the target's own checkpoint, an
    ``AuxiliaryWeights`` of checkpoint_converters; None: they never do. by_target: whether they are
    looked for there alone. copies_target: its draft is the target's own network, with fewer bits;
    such a config names no checkpoint.

    recipe: how a draft of its own is trained; None: not here.

    usual: what benchmarks try with a draft for it, a chain first; empty: a chain of 4. forgetful:
    options by which it keeps nothing of requests that have ended, for benchmarks that ask the same
    in every round. any_draft: it takes a draft for any method, which the draft's files tell.
    """

    options: type[DecodingConfig]
    title: str
    needs: Callable[[Any], DrafterNeeds] | None = None
    make: Callable[[Any, Any], Drafter] | None = None
    prepare: Callable[[Mapping[str, Any], Parser], Mapping[str, Any]] | None = None
    recording: Recording | None = None
    over_drafts: Callable[[Any, Sequence[str]], DecodingConfig] | None = None
    spellings: Sequence[str] = ()
    ending: str | None = None
    model_words: Sequence[str] = ()
    parallel_of: type[DecodingConfig] | None = None
    kinds: Sequence[DraftKind] = ()
    reader: DraftReader | None = None
    in_target: Any = None
    by_target: bool = False
    copies_target: bool = False
    recipe: TrainingRecipe | None = None
    usual: Sequence[str] = ()
    forgetful: Mapping[str, Any] = field(default_factory=dict)
    any_draft: bool = False

    @property
    def name(self) -> str:
        """In configs, engine folders and tables."""
        return self.options.method

    @property
    def needs_draft(self) -> bool:
        """Whether its config must name a checkpoint that drafts."""
        found = (each for each in fields(self.options) if each.name == "speculative_model")
        return any(each.default is MISSING for each in found)

    @property
    def draft_method(self) -> str:
        """The method whose drafts it runs; mostly its own."""
        return getattr(self.options, "draft_method", None) or self.name

    @property
    def lists_others(self) -> bool:
        """Whether its config must say which methods draft for it."""
        return self.needs is None and not self.any_draft
