"""What is recorded is what a head will see: the states and distributions of transformers' model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from trtspec import SamplingParams
from trtspec.builder.locate import assets_root
from trtspec.speculative.registry import methods, trainable_methods
from trtspec.train.target import TrainingTarget
from trtspec.train.teacher import Teacher
from trtspec.train.windows import RecordedTexts

from ..e2e.helpers import open_llm, random_prompt, tokens

TARGET = assets_root() / "trtspec-tiny"


@pytest.mark.parametrize("method", trainable_methods())
def test_what_the_guide_records_can_be_trained_on(tmp_path: Path, method: str) -> None:
    """The layers of a recording are those of the training that is named, of this target."""
    config = {
        "method": "extract_hidden_states",
        "capture_layers": method,
        "shared_storage_path": str(tmp_path),
    }
    with open_llm(TARGET, config) as llm:
        prompts = [random_prompt(i, 8, 1000) for i in range(2)]
        llm.generate(prompts, SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    recipe = methods()[method].recipe
    assert recipe is not None
    layers = recipe.capture_layers(TrainingTarget.open("trtspec-tiny").config)
    assert RecordedTexts(sorted(tmp_path.glob("*.safetensors")), layers, 8).normed


@pytest.mark.parametrize("last", [7, 8])
def test_states_and_logits(tmp_path: Path, last: int) -> None:
    """Whether the last state was recorded behind the final norm (8) or before it (7); all logits,
    and those of a part of the vocabulary."""
    config = {
        "method": "extract_hidden_states",
        "capture_layers": [last, 4, 1, 0],
        "shared_storage_path": str(tmp_path),
    }
    prompts = [random_prompt(i, 30, 1000) for i in range(2)]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    with open_llm(TARGET, config) as llm:
        tokens(llm.generate(prompts, params, use_tqdm=False))
    texts = RecordedTexts(sorted(tmp_path.glob("*.safetensors")), [1, 4], 8)
    window = texts.window([(0, 0, 49)])
    assert window.valid.all() and window.normed == (last == 8)

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    with torch.no_grad():
        out = model(window.tokens, output_hidden_states=True)
    features = torch.cat((out.hidden_states[2], out.hidden_states[5]), -1)
    torch.testing.assert_close(window.features, features, rtol=1e-3, atol=1e-3)
    target = TrainingTarget.open("trtspec-tiny")
    assert target.head is target.embedding and target.config.num_layers == 8
    for rows in (None, torch.tensor([5, 17, 4000])):
        found = Teacher(target, rows, "cpu").logits(window.state, window.normed).float()
        expected = out.logits if rows is None else out.logits[..., rows]
        assert (found - expected).abs().max() < 0.02 * expected.abs().max()
