"""What all tests share: an engine cache of their own, and tiny models on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .shared_folder import shared_folder

if TYPE_CHECKING:
    from .e2e.eagle_heads import RightHeads
    from .e2e.helpers import TinyModels

# Before torch is imported, and for the processes that tests start: the networks are so small that
# threads cost more than they do, by far where several workers share the cores. What threads may
# change is tested where the ops are.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What stands around kernels in a compiled graph runs for milliseconds here, and is compiled longer.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")

_LEFT_OUT = "ci", "matrix"


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist hand out files in their order: those that take minutes lie in the middle,
    and small ones are left for the end."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the marks in `_LEFT_OUT` say, whatever else is selected, but where ``-m``
    names one of them."""
    if any(mark in config.option.markexpr for mark in _LEFT_OUT):
        return
    left_out = [item for item in items if any(map(item.get_closest_marker, _LEFT_OUT))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not any(map(item.get_closest_marker, _LEFT_OUT))]


@pytest.fixture(scope="session", autouse=True)
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE_DIR", str(shared_folder(tmp_path_factory, "engine-cache")))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Random checkpoints in Hugging Face format, each written when first asked for."""
    # Imported here: transformers takes seconds, and most unit tests do without it.
    from .e2e.helpers import TinyModels

    return TinyModels(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def right_heads(tmp_path_factory: pytest.TempPathFactory) -> RightHeads:
    """A tiny target with heads that are right half of the time."""
    from .e2e.eagle_heads import save_right_heads

    return save_right_heads(tmp_path_factory.mktemp("right"), 3.0)


@pytest.fixture(scope="session")
def rounded_engine(right_heads: RightHeads, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same target with an EAGLE-3 head that drafts one token, both with int4 weights, heads
    and the embedding of int8 and inputs rounded, and computing in float32."""
    from .compiled_engines import build_one

    draft = str(right_heads.eagle3)
    config = {"method": "eagle3", "model": draft, "num_speculative_tokens": 1}
    limits = {"max_batch_size": 8, "max_seq_len": 128}
    formats = {"weight_dtype": "int4", "embedding_weight_dtype": "int8"}
    return build_one(tmp_path_factory, right_heads.target, config, **formats, **limits)
