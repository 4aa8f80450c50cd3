"""build: one engine folder, opened with its draft and without."""

from __future__ import annotations

from pathlib import Path

import pytest

import trtspec
from trtspec import LLM
from trtspec.errors import BuildError, CheckpointError, ConfigError

from ..e2e.helpers import PARAMS_40, TinyModels, chain, ngram, random_prompt

OPTIONS = {"dtype": "float32", "backend": "eager", "max_batch_size": 2, "max_seq_len": 96}
PROMPT = random_prompt(90, 12)


def test_one_folder_for_every_way(models: TinyModels) -> None:
    """Built once; LLM with the options of the build opens it with the draft, n-gram or nothing."""
    config = chain(models.draft("llama"), 3)
    folder = trtspec.build(models.folder("llama"), config, **OPTIONS)
    assert trtspec.build(models.folder("llama"), config, **OPTIONS) == folder
    assert trtspec.build(folder) == folder
    for speculation, calls in ((None, True), (config, True), (ngram(3), False), (False, False)):
        with LLM(folder, speculation, skip_tokenizer_init=True, **OPTIONS) as llm:
            output = llm.generate(PROMPT, PARAMS_40).outputs[0]
            assert output.token_ids == models.greedy("llama", PROMPT)
            assert (llm.get_metrics()["num_draft_calls"] > 0) == calls


def test_into_a_folder_of_ones_own(models: TinyModels, tmp_path: Path) -> None:
    output = tmp_path / "engine"
    for _ in range(2):
        assert trtspec.build(models.folder("llama"), None, output, **OPTIONS) == output
    with pytest.raises(BuildError, match="is not this engine"):
        trtspec.build(models.folder("llama"), None, output, **{**OPTIONS, "max_batch_size": 3})


def test_what_cannot_be_built(models: TinyModels, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean `max_batch_size`"):
        trtspec.build(models.folder("llama"), max_batchsize=2)
    with pytest.raises(ConfigError, match="must be None, a mapping"):
        trtspec.build(models.folder("llama"), False)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        trtspec.build(tmp_path)
