"""TreeShape: the fixed shape of a draft tree, which a rollout is built for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.errors import ConfigError

MAX_TREE_ROWS = 1024
MAX_TOPK = 64

Choices = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class TreeShape:
    """(k, D, N): children kept per node, draft steps, rows verified including the root.

    Without ``choices`` the tree is dynamic (a chain if k is 1): the best N - 1 nodes of a beam of
    width k are kept. With ``choices`` it is static: each choice is the path of one node, given by
    its rank among siblings at every depth, as in EAGLE-1 and Medusa; k, D and N follow from the
    choices.
    """

    topk: int
    num_steps: int
    num_draft_tokens: int
    choices: Choices | None = None

    def __post_init__(self) -> None:
        k, depth, rows = self.topk, self.num_steps, self.num_draft_tokens
        if not 1 <= k <= MAX_TOPK:
            raise ConfigError(f"topk={k} must be between 1 and {MAX_TOPK}")
        if depth < 1:
            raise ConfigError(f"num_steps={depth} must be at least 1")
        if not 2 <= rows <= MAX_TREE_ROWS:
            raise ConfigError(
                f"num_draft_tokens={rows} counts the root and at least one draft token; it must be "
                f"between 2 and {MAX_TREE_ROWS}"
            )
        if self.choices is not None:
            expected = TreeShape._of_checked(check_choices(self.choices))
            if (k, depth, rows, self.choices) != expected:
                raise ConfigError(
                    f"choices {list(self.choices)} make a tree of topk={expected[0]}, "
                    f"num_steps={expected[1]}, num_draft_tokens={expected[2]}, not of {k}, "
                    f"{depth}, {rows}"
                )
            return
        capacity = k + (depth - 1) * k * k
        if rows - 1 > capacity:
            raise ConfigError(
                f"num_draft_tokens - 1 <= topk + (num_steps - 1) * topk^2 does not hold: "
                f"{rows} - 1 = {rows - 1} > {k} + ({depth} - 1) * {k}^2 = {capacity}; "
                f"lower num_draft_tokens to {capacity + 1} or raise topk or num_steps"
            )
        if k == 1 and rows != depth + 1:
            raise ConfigError(
                f"a chain (topk=1) of {depth} steps verifies num_draft_tokens={depth + 1} rows, "
                f"got {rows}; set num_steps={rows - 1} or raise topk"
            )

    @classmethod
    def static(cls, choices: Iterable[Iterable[int]], name: str = "eagle_choices") -> TreeShape:
        """The tree of these paths, which messages call ``name``; ConfigError unless every parent is
        included."""
        return cls(*cls._of_checked(check_choices(choices, name)))

    @staticmethod
    def _of_checked(choices: Choices) -> tuple[int, int, int, Choices]:
        ranks = max(path[-1] for path in choices)
        return ranks + 1, max(map(len, choices)), len(choices) + 1, choices

    @property
    def num_nodes(self) -> int:
        """Nodes of the tree, without the root."""
        return self.num_draft_tokens - 1

    @property
    def first_step(self) -> TreeShape:
        """The tree of a one-step rollout: the root's topk best children, as far as this tree has
        room for them."""
        return TreeShape(self.topk, 1, min(self.topk + 1, self.num_draft_tokens))

    @property
    def num_rollout_rows(self) -> int:
        """Rows that a rollout writes into the draft cache after the accepted ones."""
        if self.choices is None:
            return self.topk * (self.num_steps - 1)
        return len(self._inner_paths)

    @property
    def widest_pass(self) -> int:
        """Most rows of a request that a pass behind the first feeds; 0: there is none."""
        if self.choices is None:
            return self.topk if self.num_steps > 1 else 0
        return max(Counter(map(len, self._inner_paths)).values(), default=0)

    @property
    def _inner_paths(self) -> set[tuple[int, ...]]:
        """Of a static tree, those of nodes with children."""
        return {path[:-1] for path in self.choices or () if len(path) > 1}


def check_choices(choices: Iterable[Iterable[int]], name: str = "eagle_choices") -> Choices:
    """The paths as tuples, ordered by depth, then by rank; messages call them ``name``.

    Raises:
        ConfigError: there is no path, or one is empty, repeated, has a negative rank or lacks its
            parent; the path is named.
    """
    paths = [tuple(path) for path in choices]
    if not paths:
        raise ConfigError(f"{name} is empty; give at least one path, such as [[0]]")
    known = set(paths)
    if len(known) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ConfigError(f"{name} has the path {list(twice)} twice")
    for path in paths:
        if not path:
            raise ConfigError(f"{name} has an empty path; the root is always there")
        if min(path) < 0:
            raise ConfigError(f"{name} path {list(path)} has a negative rank")
        if len(path) > 1 and path[:-1] not in known:
            raise ConfigError(
                f"{name} path {list(path)} has no parent: add {list(path[:-1])} or leave it out"
            )
    return tuple(sorted(paths, key=lambda path: (len(path), path)))
