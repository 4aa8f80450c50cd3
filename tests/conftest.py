"""What all tests share: an engine cache of their own, and tiny models on disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .e2e.helpers import TinyModels


@pytest.fixture(scope="session", autouse=True)
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE_DIR", str(tmp_path_factory.mktemp("engine-cache")))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Random checkpoints in Hugging Face format, each written when first asked for."""
    # Imported here: transformers takes seconds, and most unit tests do without it.
    from .e2e.helpers import TinyModels

    return TinyModels(tmp_path_factory.mktemp("models"))
