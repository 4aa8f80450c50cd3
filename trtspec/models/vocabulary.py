"""How a draft network embeds and predicts tokens: embedding and head, its own or borrowed."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig, rows_of_rank
from trtspec.config.quantised import Weights
from trtspec.formats.network_formats import NetworkFormats, reads_head
from trtspec.formats.registry import IN_PANELS
from trtspec.formats.stored import StoredWeight
from trtspec.models.causal_lm import EMBEDDING
from trtspec.models.embedding import Embedding
from trtspec.models.layer_facts import Matrix
from trtspec.models.linear import Linear
from trtspec.models.loading import load_linear
from trtspec.models.ranks import Ranks


class VocabularyConfig(Protocol):
    """What `DraftVocabulary` needs to know about a network's shape."""

    @property
    def decoder(self) -> ModelConfig: ...

    @property
    def own_embedding(self) -> bool: ...

    @property
    def own_head(self) -> bool: ...

    @property
    def draft_vocab_size(self) -> int: ...

    @property
    def maps_tokens(self) -> bool: ...


def head_matrix(config: VocabularyConfig) -> Matrix:
    """A draft's head: its own, or the target's or some rows of it."""
    rows = rows_of_rank(config.draft_vocab_size, config.decoder.ranks)
    hidden = config.decoder.hidden_size
    return Matrix(rows, hidden, "head", True) if config.own_head else Matrix(rows, hidden)


class TargetParts(nn.Module):
    """The target's embedding and head, where a draft has none of its own. The names are those of
    `CausalLM`, so that an engine binds the target's own memory to them: where the draft is split as
    ``target`` is, a rank's rows."""

    def __init__(
        self,
        target: ModelConfig,
        dtype: torch.dtype,
        embed: bool,
        head: bool,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        hidden = target.hidden_size
        rows = formats.target_embedding
        tied = reads_head(target.head.tied, formats.target_head, rows)
        own = embed and not tied
        count = target.embedding_rows
        self.embed = Embedding(count, hidden, dtype, format=rows) if own else None
        needs_head = head or (embed and tied)
        count, form = target.head_rows, formats.target_head
        self.lm_head = Linear(hidden, count, dtype, format=form) if needs_head else None

    def load(self, tensors: Weights) -> None:
        """Fill it from the target's tensors, where the target itself has not all of its rows."""
        if self.embed is not None:
            self.embed.load(tensors, f"{EMBEDDING}.weight")
        if self.lm_head is not None:
            load_linear(self.lm_head, tensors, [_head(tensors)])

    def embedding(self, ids: Tensor) -> Tensor:
        """``ids [T] i64`` -> ``[T, H]``."""
        if self.embed is not None:
            rows: Tensor = self.embed(ids)
            return rows
        assert self.lm_head is not None
        return self.lm_head.gather_rows(ids)


class DraftVocabulary(nn.Module):
    """The base of draft networks that may borrow from their target.

    Names in the ``state_dict``: ``embed.*`` and ``lm_head.*`` of its own, ``token_map [V_d]
    i64`` (the target's id of each row of the head, where it has fewer), ``target.*`` for what is
    borrowed: those are the target's own tensors; of a split one ``ranks.*`` (see `Ranks`).
    """

    token_map: Tensor | None

    def __init__(
        self,
        config: VocabularyConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        decoder, rows = config.decoder, config.draft_vocab_size
        hidden, own_embedding = decoder.hidden_size, config.own_embedding
        self.ranks = Ranks(decoder.ranks, decoder.embedding_rows) if decoder.ranks > 1 else None
        self.draft_vocab_size = rows
        # A head cut by a token map is a copy of some of the target's rows.
        self.cuts_target_head = not config.own_head and config.maps_tokens
        has_head = config.own_head or self.cuts_target_head
        self.embed: Embedding | None = None
        if own_embedding:
            table = formats.of_embedding(EMBEDDING)
            self.embed = Embedding(decoder.embedding_rows, hidden, dtype, format=table)
        head_format = formats.of_head("head") if config.own_head else formats.target_head
        own_rows = rows_of_rank(rows, decoder.ranks)
        self.lm_head = Linear(hidden, own_rows, dtype, format=head_format) if has_head else None
        borrows = {"embed": not own_embedding, "head": not has_head}
        self.target = TargetParts(target, dtype, **borrows, formats=formats)
        ids = torch.empty(rows, dtype=torch.int64)
        self.register_buffer("token_map", ids if config.maps_tokens else None)

    def embedding(self, ids: Tensor) -> Tensor:
        """``ids [T] i64`` -> ``[T, H]``."""
        read = self.target.embedding if self.embed is None else self.embed
        rows: Tensor = read(ids) if self.ranks is None else self.ranks.rows(read, ids)
        return rows

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, V_d] f32`` of rows ``[R, H]`` that are ready for the head."""
        head = self.target.lm_head if self.lm_head is None else self.lm_head
        assert head is not None
        logits: Tensor = head(hidden, torch.float32)
        if self.ranks is not None:
            logits = self.ranks.columns(logits, self.draft_vocab_size)
        return logits

    def load_embedding(self, tensors: Weights) -> None:
        """Fill an embedding of its own, and which rank it is of a split one; CheckpointError if a
        tensor is missing."""
        if self.ranks is not None:
            self.ranks.load(tensors)
        if self.embed is not None:
            self.embed.load(tensors, f"{EMBEDDING}.weight")

    def load_head(self, tensors: Weights, target: Weights) -> None:
        """Load a head of its own, after ``token_map``. ``target`` holds the target checkpoint's
        tensors by internal names; a cut head takes its rows from there.

        Raises:
            CheckpointError: the tensor is missing.
        """
        if self.lm_head is None:
            return
        if not self.cuts_target_head:
            load_linear(self.lm_head, tensors, ["head"])
            return
        assert self.token_map is not None
        weight = StoredWeight.read(target, f"{_head(target)}.weight")
        rows = self.token_map if self.ranks is None else self.ranks.own(self.token_map)
        self.lm_head.load([weight.picked(rows)])


def _head(target: Weights) -> str:
    """The name, without ``.weight``, of the weight that a target's head is loaded from."""
    return "head" if "head.weight" in target else EMBEDDING
