"""EngineDraft: a draft in an engine folder, and what it was built for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.config.draft import DraftConfig
from trtspec.config.draft_weights import DraftWeights
from trtspec.config.draft_window import DraftWindow
from trtspec.config.storage import NetworkStorage
from trtspec.config.strict import from_dict, to_dict
from trtspec.config.tree import Choices, TreeShape
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.log import logger
from trtspec.speculative.draft_kind import DraftKind
from trtspec.speculative.registry import draft_from_dict, draft_kinds, draft_to_dict

FIRST_DRAFT = "draft"


@dataclass(frozen=True)
class SpeculationContract:
    """What a draft in the folder was built for: (k, D, N) as in the glossary, all maxima, and the
    paths of a static tree. Defaults if nobody asks for others: p_min (see
    `TreeDecodingConfig.least_probability`), window (what its attention sees, None: everything) and
    max_model_len (see `DecodingConfig`)."""

    method: str
    topk: int
    num_steps: int
    num_draft_tokens: int
    choices: Choices | None = None
    p_min: float = 0.0
    window: DraftWindow | None = None
    max_model_len: int | None = None

    @classmethod
    def of(cls, config: TreeDecodingConfig) -> SpeculationContract:
        tree = config.tree
        return cls(
            config.method,
            tree.topk,
            tree.num_steps,
            tree.num_draft_tokens,
            tree.choices,
            config.least_probability,
            config.window,
            config.max_model_len,
        )

    @property
    def tree(self) -> TreeShape:
        return TreeShape(self.topk, self.num_steps, self.num_draft_tokens, self.choices)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; limits of drafts that are not set are left out."""
        limits = ("window", "max_model_len")
        return {k: v for k, v in asdict(self).items() if v is not None or k not in limits}


@dataclass(frozen=True)
class EngineDraft:
    """A draft of an engine. folder: where its files are, and its name in the fingerprints. storage:
    how the quantised weights that it keeps are stored in its checkpoint; None: it keeps none.
    weights: how it keeps its weights; None: like the target. doubts: see `DraftCheckpoint`.
    vocabulary: the request (`VocabularyAsked`) by which its head was cut; None: cut by a file, or
    not at all."""

    network: DraftConfig
    speculation: SpeculationContract
    folder: str = FIRST_DRAFT
    storage: NetworkStorage | None = None
    weights: DraftWeights | None = None
    doubts: tuple[str, ...] = ()
    vocabulary: str | None = None

    @property
    def kind(self) -> DraftKind:
        return draft_kinds()[self.network.kind]

    @property
    def has_cache(self) -> bool:
        """Whether its network keeps K/V."""
        return self.network.decoder is not None

    @property
    def longest(self) -> int | None:
        """The longest text that its network was made for, in tokens; None without K/V."""
        decoder = self.network.decoder
        return None if decoder is None else decoder.max_sequence

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The target layers whose K/V it reads; see `DraftKind`."""
        return self.kind.target_layers(self.network)

    @property
    def slots(self) -> int:
        """Rows that its rollout writes into its cache after the accepted ones."""
        return self.kind.slots(self.network, self.speculation.tree)

    def scratch_states(self, max_batch_size: int) -> int:
        """States that its rollouts step, of a network that keeps such: those of all rows of a pass,
        and one at least, which is that of padding as well."""
        return max(max_batch_size * self.speculation.tree.widest_pass, 1)

    @property
    def lookahead(self) -> int:
        """How many tokens after its position a row of its cache depends on."""
        return self.kind.lookahead(self.network)

    def tell_doubts(self, path: Path) -> None:
        """Log warnings about a draft that is likely to be useless."""
        for doubt in self.doubts:
            logger.warning("%s: %s", path, doubt)

    def rollout_facts(self, by_pass: bool) -> dict[str, Any] | None:
        """What a runtime without Python needs to know about its rollout; None: it runs in Python
        only. ``by_pass``: see `DraftKind.graphs_for`."""
        plain = self.kind.plain(self.network)
        if plain is None:
            return None
        reads_states = bool(self.network.capture_layers)
        by_pass = by_pass and self.kind.one_pass is not None
        own = {"reads_states": reads_states, "lookahead": self.lookahead, "rows": self.slots}
        return own | {"by_pass": by_pass} | asdict(plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        parts = {"storage": self.storage, "weights": self.weights}
        own = {name: to_dict(part) for name, part in parts.items() if part is not None}
        return {
            "folder": self.folder,
            "network": draft_to_dict(self.network),
            "speculation": self.speculation.to_dict(),
            **own,
            **({"doubts": list(self.doubts)} if self.doubts else {}),
            **({"vocabulary": self.vocabulary} if self.vocabulary else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineDraft:
        """The inverse of `to_dict`; KeyError or ConfigError for other content."""
        speculation = from_dict(SpeculationContract, data["speculation"])
        stored = data.get("storage")
        storage = None if stored is None else from_dict(NetworkStorage, stored)
        given = data.get("weights")
        weights = None if given is None else from_dict(DraftWeights, given)
        doubts = tuple(data.get("doubts", ()))
        network = draft_from_dict(data["network"])
        cut = data.get("vocabulary")
        return cls(network, speculation, data["folder"], storage, weights, doubts, cut)


def draft_folder_name(index: int) -> str:
    """The folder of the draft with this index, counting from 0."""
    return f"{FIRST_DRAFT}_{index + 1}" if index else FIRST_DRAFT
