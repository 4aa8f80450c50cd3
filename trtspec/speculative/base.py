"""DraftMethod: everything that a speculative method declares about itself."""

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
"""Makes a config from user input; see `parse_speculative_config`."""


@dataclass(frozen=True)
class Steps:
    """Limits of steps: the target, most requests and most rows in one step."""

    target: CountedEngine
    max_requests: int
    max_rows: int


@dataclass(frozen=True)
class Recording:
    """What a method that writes the target's hidden states to files declares.

    transfer: the class that parses vLLM's ``kv_transfer_config``. captured_layers: from its config
    and the target's number of layers, the layers whose outputs are written; ConfigError if they do
    not exist. over_engine: the config for an engine that captures these; ConfigError if it asks for
    others. ready: the config with what ``kv_transfer_config`` (or None) says, ready to run;
    ConfigError if something that it needs is missing on this machine.
    """

    transfer: type[Any]
    captured_layers: Callable[[Any, int], tuple[int, ...]]
    over_engine: Callable[[Any, tuple[int, ...]], DecodingConfig]
    ready: Callable[[Any, Any], DecodingConfig]


@dataclass(frozen=True)
class DraftMethod:
    """Everything that the registry asks of a method; each method has one.

    options: its config class, which has the method's name and, in its key rules, the treatment of
    other engines' options. title: the name for users. spellings: other engines' names for it,
    without case, "_" and "-"; ending: a suffix of further names for it. model_words: what users of
    these engines give as the model if the method has none. parallel_of: the config whose method
    becomes this one with vLLM's `parallel_drafting`.

    prepare: transforms a mapping of options before its config is made; it gets a parser for nested
    configs. recording: for a method that writes hidden states. over_drafts: for a method whose
    drafts are other methods': its config for the drafts in an engine's folders, one for each member
    with a network, in order.

    needs: what its drafter will need, known from the config before any engine is loaded; None:
    other methods draft for it (see `DecodingConfig.members`). make: the drafter, from the config
    and a `DraftRuntime`, which is None unless the needs include an engine.

    kinds: its draft networks; reader: of its checkpoints; neither for networks that belong to
    another method. in_target: where its networks are in the target's own checkpoint, an
    ``AuxiliaryWeights`` of checkpoint_converters; None: never there. by_target: whether they are
    only ever there. copies_target: its draft is the target's own network in fewer bits; such a
    config names no checkpoint.

    recipe: how a draft for it is trained; None: it cannot be trained here.

    usual: the settings that benchmarks try with a draft for it, a chain first; empty: a chain of 4.
    forgetful: options with which it remembers nothing of finished requests, for benchmarks that
    repeat the same requests. any_draft: it takes a draft for any method, as determined by the
    draft's files.
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
        """The name in configs, engine folders and tables."""
        return self.options.method

    @property
    def needs_draft(self) -> bool:
        """Whether its config must name a draft checkpoint."""
        found = (each for each in fields(self.options) if each.name == "speculative_model")
        return any(each.default is MISSING for each in found)

    @property
    def draft_method(self) -> str:
        """The method whose drafts it runs; usually its own."""
        return getattr(self.options, "draft_method", None) or self.name

    @property
    def lists_others(self) -> bool:
        """Whether its config must say which methods draft for it."""
        return self.needs is None and not self.any_draft
