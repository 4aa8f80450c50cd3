"""Families on compiled backends: their text is transformers', drafts included.

`tests/cpp/test_families.py` has the family of the most blocks on `aoti`, from Python and C++.
"""

from __future__ import annotations

from functools import cache

import pytest

from checkpoint_converters import read_config
from trtspec.errors import ConfigError
from trtspec.models.layer_facts import keeps_states

from .families import FAMILIES, VOCAB, family_model
from .helpers import GREEDY_24, TinyModels, assert_no_leak, open_llm, random_prompt, tokens, tree
from .test_families import draft_model

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]


@pytest.mark.parametrize("backend", ["aoti", "onnx"])
@pytest.mark.parametrize("case", FAMILIES)
def test_compiled_text(case: str, backend: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    models = TinyModels(tmp_path_factory.mktemp(case))
    models.hf = cache(family_model)
    if backend == "onnx" and keeps_states(read_config(models.folder(case))):
        with pytest.raises(ConfigError, match=r"layers that keep states, and graphs of .*'onnx'"):
            open_llm(models.folder(case), backend=backend)
        return
    expected = [models.greedy(case, prompt, 24) for prompt in PROMPTS]
    draft = tree(draft_model(models, case), 2, 3, 8)
    limits = {"max_num_tokens": 32, "max_seq_len": 100}
    with open_llm(models.folder(case), draft, backend=backend, **limits) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY_24)) == expected
        assert llm.get_metrics()["num_accepted_tokens"] > 0
        assert_no_leak(llm)
