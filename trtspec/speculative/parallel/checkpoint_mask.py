"""The mask token of parallel drafts, by the keys of their trainers."""

from __future__ import annotations

from checkpoint_converters.hf_config import HfConfig

PARD_KEYS = ("pard_token", "ptd_token_id")
"""Keys that only such a draft has in its config.json."""
ALL_KEYS = (*PARD_KEYS, "mask_token_id")


def has_pard_token(hf: HfConfig) -> bool:
    """Whether config.json is that of a PARD draft, given that it describes a language model."""
    return any(hf.get(key) is not None for key in PARD_KEYS)


def read_mask_token(hf: HfConfig) -> int:
    """The id, by whichever key states it.

    Raises CheckpointError if none does, for an invalid id, and if two keys disagree.
    """
    said: dict[str, int] = {}
    for key in ALL_KEYS:
        value = hf.get(key)
        if value is None:
            continue
        if type(value) is not int:
            raise hf.refuse(f"{key} is {value!r}, not a token id")
        said[key] = value
    if not said:
        raise hf.refuse(
            f"the draft reads a mask token, but none of {', '.join(ALL_KEYS)} says which; write "
            "the id that it was trained with as mask_token_id"
        )
    if len(set(said.values())) > 1:
        pairs = " and ".join(f"{key} {value}" for key, value in said.items())
        raise hf.refuse(f"{pairs} disagree about the draft's mask token; remove the wrong one")
    return next(iter(said.values()))
