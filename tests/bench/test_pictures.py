"""The pictures of HOW_IT_WORKS.md show what the executor does today."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from trtspec.bench.pictures import how_it_works
from trtspec.bench.pictures.how_it_works import DRAWINGS

FOLDER = Path(how_it_works.__file__).parent


@pytest.mark.parametrize("name", DRAWINGS)
def test_what_is_drawn_is_what_is_kept(name: str) -> None:
    kept = (FOLDER / f"{name}.svg").read_text()
    assert DRAWINGS[name]().svg() == kept, "run python -m trtspec.bench.pictures.how_it_works"
    ElementTree.fromstring(kept)
