"""An embedding in 8 bits, beside layers and a head of their own: drafts that borrow its rows change
nothing about the text, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM
from trtspec.errors import ConfigError

from .every_method import METHODS, PROMPTS
from .helpers import GREEDY_24, SAMPLED_24, TinyModels, assert_no_leak, open_llm, tokens

ROUNDED: dict[str, Any] = {"weight_dtype": "int4", "embedding_weight_dtype": "int8"}


def texts(llm: LLM) -> list[Any]:
    return [tokens(llm.generate(PROMPTS, p, use_tqdm=False)) for p in (GREEDY_24, SAMPLED_24)]


@pytest.mark.parametrize(
    "method",
    [*("eagle", "dflash"), *(pytest.param(m, marks=pytest.mark.matrix) for m in sorted(METHODS))],
)
def test_drafts_change_nothing(models: TinyModels, tmp_path: Path, method: str) -> None:
    folder, config = METHODS[method](models, tmp_path)
    with open_llm(folder, None, **ROUNDED) as llm:
        assert llm.config.build.embedding_weight_dtype == "int8"
        expected = texts(llm)
    with open_llm(folder, config, **ROUNDED, max_num_tokens=60) as llm:
        assert texts(llm) == expected
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)


# In the default suite `rounded_engine` has such a table, in Python and in C++.
@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.parametrize("target", ["llama", "qwen2_tied"])
def test_compiled(models: TinyModels, target: str) -> None:
    """A table of its own, or the head's: the text is that of backend eager, where inputs are not
    rounded to 8 bits, which makes a step of what the compiler changes in the last bit."""
    folder, found = models.folder(target), []
    for backend in ("eager", "aoti"):
        options = {**ROUNDED, "activation_dtype": "float32", "backend": backend}
        with open_llm(folder, None, **options) as llm:
            found.append(texts(llm))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (
            "qwen2_tied",
            {"embedding_weight_dtype": "int8"},
            "embedding_weight_dtype int8: the model ties .* whose weights are float32.*"
            "head_weight_dtype int8 too, or leave",
        ),
        ("llama", {"embedding_weight_dtype": "int5"}, "embedding_weight_dtype 'int5' is not supp"),
        (
            "llama",
            {"embedding_weight_dtype": "bfloat16", "backend": "onnx"},
            "'bfloat16' with dtype 'float32'.* on CPUs by the ops of trtspec",
        ),
        (
            "llama",
            {"embedding_weight_dtype": "int8", "backend": "onnx"},
            "embedding_weight_dtype int8 is not available on backend 'onnx'",
        ),
    ],
)
def test_what_is_refused(
    models: TinyModels, target: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_llm(models.folder(target), None, **options)
