"""DraftMethod: one speculative method, as all others know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from trtspec.config.decoding import DecodingConfig
from trtspec.executor.drafter import Drafter, DrafterNeeds
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.speculative.draft_kind import DraftKind
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.recipe import TrainingRecipe


@dataclass(frozen=True)
class Steps:
    """What steps may become: the target, most requests and most rows of one."""

    target: CountedEngine
    max_requests: int
    max_rows: int


@dataclass(frozen=True)
class DraftMethod:
    """All that is asked of a method: by the registry, which has one of these for each.

    options: the class of its config, which has the method's name and says by its key rules what
    becomes of the options of neighbouring engines. title: what users call it. spellings: what these
    engines call it, without case, "_" and "-"; ending: how the other names end that mean it.
    model_words: what their users write as the model where the method has none. parallel_of: the
    config whose method becomes this one by vLLM's `parallel_drafting`.

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
