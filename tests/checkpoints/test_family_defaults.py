"""A key that config.json does not have means what transformers takes it for, or is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoint_converters import read_config
from trtspec.errors import CheckpointError

from ..e2e.families import FAMILIES, SIZES

UNREAD = {"architectures", "model_type", "dtype"}


def assert_means_the_default(case: str, keys: set[str] | None, folder: Path) -> int:
    """Each of the keys left out, against what transformers makes of the same file; None: of all.
    How many were read rather than refused."""
    made, file, num_read = FAMILIES[case], folder / "config.json", 0
    whole = made.config(**{**SIZES, **made.says}).to_dict()
    spelled = {"architectures": [made.model.__name__], "dtype": "float32"}

    def read(values: dict[str, Any]) -> Any:
        file.write_text(json.dumps(values | spelled))
        return read_config(folder)

    for key in set(whole) - UNREAD if keys is None else keys:
        left = {name: value for name, value in whole.items() if name != key}
        try:
            found = read(left)
            theirs = made.config.from_dict(dict(left)).to_dict()
        except (CheckpointError, ValueError):  # either refuses it, or transformers' default of it
            continue
        assert found == read(theirs), key
        num_read += 1
    return num_read


@pytest.mark.parametrize("case", FAMILIES)
def test_ends_and_rope(case: str, tmp_path: Path) -> None:
    keys = {"bos_token_id", "eos_token_id", "rope_parameters"}
    assert assert_means_the_default(case, keys, tmp_path) == 3


@pytest.mark.matrix
@pytest.mark.parametrize("case", FAMILIES)
def test_all_keys(case: str, tmp_path: Path) -> None:
    assert assert_means_the_default(case, None, tmp_path) > 10
