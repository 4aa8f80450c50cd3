"""EAGLE-3 heads as wide as a larger target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trtspec.errors import CheckpointError
from trtspec.speculative.widener import Widener

CAPTURED = "eagle_aux_hidden_state_layer_ids"
_FC, _HEAD, _EMBEDDING = "fc.weight", "lm_head.weight", "embed_tokens.weight"


def _widen(w: Any) -> None:
    """Add all tensors of a head, under the names that the source gives them: ``midlayer`` (the
    EAGLE repository, SpecForge) or ``layers.0`` (ModelOpt). Its own vocabulary stays; where the
    target's grows beside a head without a map, a map of the old ids is added.
    """
    size = w.hidden.size
    states, rest = divmod(w.source.shape(_FC)[1], size)
    if rest:
        raise CheckpointError(
            f"{w.source.path}: fc.weight has {states * size + rest} inputs, no multiple of the "
            f"hidden size {size}; only heads as wide as their target can be widened"
        )
    w.add_matrix(_FC, _FC, w.hidden.written, w.reads(states))
    prefix = next((p for p in ("midlayer.", "layers.0.") if _has(w, p)), "midlayer.")
    w.add_layer(prefix, prefix, w.reads(2))
    w.add_norm("norm.weight", "norm.weight")
    rows = _rows(w)
    w.add_head(_HEAD, _HEAD, rows, rows)
    if _EMBEDDING in w.source.files:
        w.add_embedding(_EMBEDDING, _EMBEDDING)
    if "d2t" in w.source.files:
        w.check("d2t", (rows,))
        w.add("d2t", (rows,), lambda: w.source.tensor("d2t").long(), torch.int64)
    elif w.vocab_size > rows:
        w.add("d2t", (rows,), partial(torch.zeros, rows, dtype=torch.int64), torch.int64)
    if "t2d" in w.source.files:
        w.check("t2d", (w.vocab,))
        w.add(
            "t2d",
            (w.vocab_size,),
            lambda: _padded(w.source.tensor("t2d"), w.vocab_size),
            torch.bool,
        )
    w.finish()


def _config(w: Any, layers: int, moved: Callable[[int], int]) -> dict[str, Any]:
    keys = captured(w.source.config, layers, moved)
    keys["draft_vocab_size"] = _rows(w)
    if "target_hidden_size" in w.source.config:
        keys["target_hidden_size"] = w.hidden.wide
    return keys


def captured(config: Mapping[str, Any], layers: int, moved: Callable[[int], int]) -> dict[str, Any]:
    """The config keys that name the target's layers a head reads, at their new places.

    They are kept where the source has them: in ``eagle_config``, as outputs of layers (ModelOpt),
    or at the top, as inputs of layers (SpecForge, speculators). A head that names none reads the
    inputs of layers 2, L / 2 and L - 3; as the wider target's L is another one, ``eagle_config`` is
    written for it.
    """
    top, nested = config.get(CAPTURED), config.get("eagle_config") or {}
    outputs = nested.get(CAPTURED) or (None if top else (1, layers // 2 - 1, layers - 4))
    keys: dict[str, Any] = {}
    if top:
        keys[CAPTURED] = [moved(i - 1) + 1 for i in top]
    if outputs:
        keys["eagle_config"] = {**nested, CAPTURED: [moved(i) for i in outputs]}
    return keys


def _rows(w: Any) -> int:
    rows: int = w.source.integer("draft_vocab_size", w.vocab)
    return rows


def _has(w: Any, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in w.source.files)


def _padded(flags: Tensor, size: int) -> Tensor:
    wide = torch.zeros(size, dtype=torch.bool)
    wide[: len(flags)] = flags.bool()
    return wide


EAGLE3_WIDENER = Widener("EAGLE-3 heads", lambda names: _FC in names, _widen, _config)
