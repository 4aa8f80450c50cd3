"""The sequence length of an engine, and the reason, from the model's rope tables."""

from __future__ import annotations

from trtspec.config.model import ModelConfig
from trtspec.config.rope import RopeConfig
from trtspec.errors import ConfigError


def usual_length(model: ModelConfig) -> str:
    """Why engines without a requested length get `ModelConfig.usual_sequence`."""
    limit, longest = model.max_position_embeddings, model.max_sequence
    if model.usual_sequence < limit:
        return (
            f"what the model has short longrope factors for; of its max_position_embeddings={limit}"
            " more can be asked for, by the long factors throughout"
        )
    for rope in model.ropes:
        if rope.type == "yarn" and _before(rope) != limit and rope.stretched(1) == limit:
            return f"what the model's yarn rope (factor {rope.factor:g}) makes of {_before(rope)}"
    if longest == limit:
        return "the model's max_position_embeddings"
    return (
        "the model's max_position_embeddings; should that be counted before "
        f"{_stretching(model)}, up to {longest} can be asked for"
    )


def check_length(model: ModelConfig, length: int) -> list[str]:
    """Lines about a requested length.

    Raises:
        ConfigError: the model's sequences are shorter.
    """
    limit, longest = model.max_position_embeddings, model.max_sequence
    if length > longest:
        stretch = f", which {_stretching(model)} may make {longest}" if longest > limit else ""
        raise ConfigError(
            f"max_seq_len={length} exceeds the model's max_position_embeddings={limit}{stretch}; "
            f"lower max_seq_len to {longest}"
        )
    if length > limit:
        return [
            f"max_seq_len {length}: past the model's max_position_embeddings={limit}, as if that "
            f"were counted before {_stretching(model)}"
        ]
    if length > model.usual_sequence:
        return [
            f"max_seq_len {length}: past the {model.usual_sequence} tokens that the model has "
            "short longrope factors for; the long ones serve all texts, short ones too"
        ]
    return []


def _before(rope: RopeConfig) -> int | None:
    return rope.original_max_position_embeddings


def _stretching(model: ModelConfig) -> str:
    """The rope table that limits how far positions may be stretched."""
    limit, longest = model.max_position_embeddings, model.max_sequence
    rope = next(rope for rope in model.ropes if rope.stretched(limit) == longest)
    return f"its {rope.type} rope (factor {rope.factor:g}) stretches it"
