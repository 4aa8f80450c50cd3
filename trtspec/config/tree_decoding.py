"""TreeDecodingConfig: options of methods whose drafts come as a tree from an engine of their
own."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from trtspec.config.decoding import DecodingConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.draft_vocabulary import VocabularyAsked
from trtspec.config.draft_weights import AUTO, DraftWeights
from trtspec.config.draft_window import DraftWindow
from trtspec.config.tree import MAX_TREE_ROWS, Choices, TreeShape
from trtspec.errors import ConfigError

OWN_MODULES = "[target]"
"""The name by which a config refers to networks in the target's own checkpoint."""
LEFT_OUT = -(1 << 31)
"""Marks a number that was not given; once a config is constructed, it holds the resolved number."""


@dataclass(frozen=True, kw_only=True)
class TreeDecodingConfig(DecodingConfig):
    """A draft checkpoint and the shape (k, D, N) of the tree it rolls out; a chain if k is 1.

    speculative_model: directory or id of the draft checkpoint (also `model`, `draft_model`,
    `speculative_model_dir`). max_draft_len: D, draft steps (also `num_speculative_tokens`,
    `num_steps`). topk: k, candidates kept per step (also `eagle_topk`, `dynamic_tree_max_topK`),
    default 1. num_draft_tokens: N, rows verified including the root; at most 1 + k + (D-1)k^2. The
    default is D + 1 for a chain and k*D + 1 for a tree, within the row limit.
    max_total_draft_tokens: the same without the root, N - 1. use_dynamic_tree: asks for a tree; k
    above 1 does so as well, so it may be left out.

    weight_dtype, weight_group_size, head_weight_dtype, activation_dtype: for the draft's network,
    what `BuildConfig` has for the target; the text does not depend on them. Weights that the
    checkpoint has quantised are then requantised. auto: on a CPU a language model of more than 100
    MB gets 4 bits, its head too; any other draft keeps its weights, or has them in the target's
    format. A head without a dtype of its own follows the other layers, if these have one.

    draft_window: newest tokens that the draft's attention sees, beside the first draft_sinks of a
    text, both in whole blocks; its cache lets go of what lies between (also
    `speculative_draft_window_size`, `speculative_draft_sink_size`). None: it sees all. It may be
    asked for of an engine that is built already.

    draft_tensor_parallel_size: processes that the draft is split over: 1 (None), the first of the
    target's, or all of them.
    """

    draft_method: ClassVar[str | None] = None
    """The method whose drafts it runs, if not its own."""

    least_key: ClassVar[str | None] = None
    """The field that holds `least_probability`, if the method has one."""

    choices_key: ClassVar[str | None] = None
    """The field that fixes a static tree, if the method supports static trees."""

    usual_steps: ClassVar[int | None] = 5
    steps_by_pass: ClassVar[int | None] = None
    """`usual_steps` where a draft stops before what does not pay; None: the same."""

    speculative_model: str | Path
    topk: int = LEFT_OUT
    num_draft_tokens: int = LEFT_OUT
    max_total_draft_tokens: int = LEFT_OUT
    use_dynamic_tree: bool = False
    weight_dtype: str = AUTO
    weight_group_size: int | None = None
    head_weight_dtype: str = AUTO
    activation_dtype: str = AUTO
    draft_window: int | None = None
    draft_sinks: int = 4
    draft_tensor_parallel_size: int | None = None

    def __post_init__(self) -> None:
        model = str(self.speculative_model)
        if not model:
            raise ConfigError("speculative_model='' is not a checkpoint; name its folder or id")
        self._set("speculative_model", model)
        tree = self.tree
        self._set("max_draft_len", tree.num_steps)
        self._set("topk", tree.topk)
        self._set("num_draft_tokens", tree.num_draft_tokens)
        self._set("max_total_draft_tokens", tree.num_nodes)
        self._set("use_dynamic_tree", tree.topk > 1 and tree.choices is None)
        self._check_common()
        ranks = self.draft_tensor_parallel_size
        if ranks is not None and ranks < 1:
            raise ConfigError(f"draft_tensor_parallel_size={ranks} must be at least 1")
        if self.draft_window is not None:
            DraftWindow(self.draft_window, self.draft_sinks)

    @classmethod
    def of_tree(
        cls,
        model: str,
        tree: TreeShape,
        least_probability: float = 0.0,
        window: DraftWindow | None = None,
        longest: int | None = None,
    ) -> Self:
        """The config of a draft that rolls out this tree; ``longest``: its max_model_len."""
        own: dict[str, Any] = {} if longest is None else {"max_model_len": longest}
        if least_probability:
            assert cls.least_key is not None, f"{cls.method} drafts whatever is unlikely"
            own[cls.least_key] = least_probability
        if window is not None:
            own |= {"draft_window": window.size, "draft_sinks": window.sinks}
        if tree.choices is not None:
            assert cls.choices_key is not None, f"{cls.method} has no static trees"
            options: dict[str, Any] = {cls.choices_key: tree.choices}
        else:
            options = {"topk": tree.topk, "num_draft_tokens": tree.num_draft_tokens}
        return cls(speculative_model=model, max_draft_len=tree.num_steps, **options, **own)

    @property
    def cut(self) -> VocabularyAsked | None:
        """The tokens that the draft's head is reduced to; None: it stays whole."""
        return None

    @property
    def merged_adapter(self) -> Path | None:
        """The folder of a low-rank adapter that is merged into the draft; None: none is."""
        return None

    def uncut(self) -> Self:
        """The same config with the whole head."""
        return self

    @property
    def weights(self) -> DraftWeights:
        """How the draft keeps its weights."""
        return DraftWeights(
            self.weight_dtype,
            self.weight_group_size,
            self.head_weight_dtype,
            self.activation_dtype,
        )

    @property
    def least_probability(self) -> float:
        """The probability that the draft must give a token, given the one before it, to go on
        drafting."""
        return 0.0 if self.least_key is None else float(getattr(self, self.least_key))

    @property
    def window(self) -> DraftWindow | None:
        """What the draft's attention sees; None: everything."""
        size = self.draft_window
        return None if size is None else DraftWindow(size, self.draft_sinks)

    def of_engine(self, folder: str) -> Self:
        """The same config for the draft network in that engine folder."""
        return replace(self, speculative_model=folder)

    def network(self, found: DraftConfig) -> tuple[DraftConfig, tuple[str, ...]]:
        """The part of a checkpoint's network that these drafts use, and lines about choices that
        were made; ConfigError if it cannot draft that deep."""
        return found.for_steps(self.tree.num_steps), ()

    def check_network(self, built: DraftConfig) -> None:
        """Raise ConfigError if these drafts need a different network than the one that the engine
        was built for."""

    def _resolve_tree(self) -> TreeShape:
        """The tree that the numbers describe, whether given or resolved; ConfigError if they
        contradict each other."""
        k = 1 if self.topk == LEFT_OUT else self.topk
        if self.use_dynamic_tree and k == 1:
            raise ConfigError(
                "use_dynamic_tree=True with topk=1 is a chain: set dynamic_tree_max_topK (the same "
                "as topk and eagle_topk) above 1, or leave use_dynamic_tree out"
            )
        self._check_common()  # before a number follows from a wrong one
        rows = rows_of(self, min(k * self.max_draft_len + 1, MAX_TREE_ROWS))
        return TreeShape(k, self.max_draft_len, rows)

    @cached_property
    def tree(self) -> TreeShape:
        """The shape of the rollout, checked; with ``choices`` if it is static."""
        return self._resolve_tree()

    @property
    def num_rows(self) -> int:
        return self.num_draft_tokens

    @property
    def num_steps(self) -> int:
        """D, the name that SGLang's users know."""
        return self.max_draft_len


@dataclass(frozen=True, kw_only=True)
class ChoicesDecodingConfig(TreeDecodingConfig):
    """A method that also supports static trees: the field named by ``choices_key`` holds the paths
    of its nodes, as tuples or as the JSON text of a list. k, D and N follow from them and must
    agree if they are given too."""

    choices_key: ClassVar[str]

    max_draft_len: int = LEFT_OUT

    def __post_init__(self) -> None:
        given = self._choices
        if isinstance(given, str):
            self._set(self.choices_key, _parse_choices(given, self.choices_key))
        super().__post_init__()
        self._set(self.choices_key, self.tree.choices)  # in the order of the tree's rows

    @property
    def _choices(self) -> Choices | str | None:
        choices: Choices | str | None = getattr(self, self.choices_key)
        return choices

    def _resolve_tree(self) -> TreeShape:
        choices = self._choices
        if choices is None or isinstance(choices, str):
            return self._resolve_numbers()
        if self.use_dynamic_tree:
            raise ConfigError(
                f"use_dynamic_tree=True grows a tree by its scores, {self.choices_key} fix one; "
                "give one of the two"
            )
        tree = TreeShape.static(choices, self.choices_key)
        for name, value in (
            ("max_draft_len", tree.num_steps),
            ("topk", tree.topk),
            ("num_draft_tokens", tree.num_draft_tokens),
            ("max_total_draft_tokens", tree.num_nodes),
        ):
            agree(self, name, value, f"{self.choices_key} make a tree of")
        return tree

    def _resolve_numbers(self) -> TreeShape:
        """The tree if no paths are given."""
        if self.max_draft_len == LEFT_OUT:
            raise ConfigError(
                f"{type(self).__name__}: missing option `max_draft_len`, the number of draft "
                "steps: write num_speculative_tokens (or num_steps, max_draft_len), for "
                f"example 5, or give a static tree as {self.choices_key}"
            )
        return super()._resolve_tree()


def with_networks(config: DecodingConfig | None) -> tuple[TreeDecodingConfig, ...]:
    """The members of a config that draft with a network of their own, in order."""
    members = config.members if config else ()
    return tuple(member for member in members if isinstance(member, TreeDecodingConfig))


def agree(config: DecodingConfig, name: str, value: int, why: str) -> None:
    """Raise ConfigError if a given number differs from what the others imply."""
    given = getattr(config, name)
    if given not in (LEFT_OUT, value):
        raise ConfigError(
            f"{name}={given} was given, but {why} {name}={value}; leave it out or write {value}"
        )


def rows_of(config: Any, usual: int) -> int:
    """num_draft_tokens, or max_total_draft_tokens, which does not count the root; ``usual`` if
    neither was given. ConfigError if they contradict each other."""
    rows, nodes = config.num_draft_tokens, config.max_total_draft_tokens
    if rows == LEFT_OUT:
        return usual if nodes == LEFT_OUT else int(nodes) + 1
    agree(config, "max_total_draft_tokens", rows - 1, f"num_draft_tokens={rows} means")
    return int(rows)


def _parse_choices(text: str, name: str) -> Choices:
    """The paths of a JSON list of lists, as given on a command line."""
    try:
        paths = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{name}={text!r} is not JSON ({error}); write a list of paths such as [[0],[1],[0,0]]"
        ) from error
    if not isinstance(paths, list) or not all(map(_is_path, paths)):
        raise ConfigError(
            f"{name}={text!r:.80} is not a list of lists of ranks, such as [[0],[1],[0,0]]"
        )
    return tuple(tuple(path) for path in paths)


def _is_path(value: object) -> bool:
    return isinstance(value, list) and all(type(rank) is int for rank in value)
