"""examples/train_eagle3.py: a training of two steps leaves a head that its target can run, on text
and on hidden states that were recorded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from trtspec import SamplingParams
from trtspec.speculative.hidden_states.files import write_hidden_states

from .helpers import open_llm, random_prompt, tokens

ROOT = Path(__file__).parents[2]
TINY = ("--steps", "2", "--own_rows", "8", "--held_out_rows", "8", "--max_files", "40")


TARGET = ROOT / "trtspec" / "assets" / "trtspec-tiny"


def train(output: Path, *flags: str) -> str:
    """Two steps, and a look at whether the head drafts; returns what the program printed."""
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt: pip install 'trtspec[train]'")
    command = [sys.executable, "examples/train_eagle3.py", "--target", str(TARGET), "--no_compile"]
    command += [*TINY, *flags, "--output", str(output)]
    ran = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    speculation = {"method": "eagle3", "model": str(output / "trtspec-tiny-eagle3")}
    params = SamplingParams(max_tokens=12)
    prompts = [list(range(40, 60))]
    with open_llm(TARGET, {**speculation, "num_speculative_tokens": 3}) as llm:
        drafted = tokens(llm.generate(prompts, params))
        assert llm.get_metrics()["num_draft_tokens"] > 0
    with open_llm(TARGET) as plain:
        assert tokens(plain.generate(prompts, params)) == drafted
    return ran.stdout


@pytest.mark.slow
def test_two_steps(tmp_path: Path) -> None:
    assert "self-written" in train(tmp_path)


def record(folder: Path, layers: list[int], lengths: range) -> int:
    """Serve prompts of these lengths and record their states; returns how many rows."""
    config = {"method": "extract_hidden_states", "capture_layers": layers}
    prompts = [random_prompt(i, length, 1000) for i, length in enumerate(lengths)]
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    with open_llm(TARGET, {**config, "shared_storage_path": str(folder)}) as llm:
        tokens(llm.generate(prompts, params, use_tqdm=False))
    return sum(lengths) + 19 * len(lengths)


@pytest.mark.slow
def test_two_steps_on_recorded_states(tmp_path: Path) -> None:
    count = record(tmp_path / "states", [7, 4, 1], range(8, 208, 40))
    printed = train(tmp_path, "--hidden_states", str(tmp_path / "states"))
    assert f"tokens: {count} recorded in 5 files" in printed
    card = (tmp_path / "trtspec-tiny-eagle3" / "README.md").read_text()
    assert f"{count} tokens recorded while trtspec-tiny served" in card


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs, on the path of imports."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return ROOT / "examples"


def test_windows_of_recorded_states(examples: Path, tmp_path: Path) -> None:
    """Every row of every file once an epoch, beside its token, columns by layer; padding behind."""
    recorded = importlib.import_module("recorded_states")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 4}')
    layers = [4, -1, 2, 0]
    for number, count in enumerate((5, 9, 1)):
        ids = torch.arange(count) + 100 * number
        states = ids[:, None, None] * 10 + torch.tensor([4, -1, 2, 0])[None, :, None]
        rows = states.expand(count, 4, 3).reshape(count, 12).float()
        path = tmp_path / f"{number}.safetensors"
        write_hidden_states(path, ids.tolist(), [rows], layers)
    found = recorded.RecordedStates(tmp_path, [2, 0], tmp_path)
    assert (len(found), found.num_tokens) == (3, 15)
    windows = found.windows(4, 4, seed=1)
    window = next(windows)
    assert window.normed and window.tokens.shape == (4, 4)
    assert sorted(window.tokens[window.valid].tolist()) == [0, 1, 2, 3, *range(100, 108), 200]
    assert all(row == sorted(row, reverse=True) for row in window.valid.tolist())
    for offset, part in ((0, window.features[..., :3]), (2, window.features[..., 3:])):
        assert torch.equal(part[window.valid][:, 0], window.tokens[window.valid] * 10.0 + offset)
    assert torch.equal(window.state[window.valid][:, 2], window.tokens[window.valid] * 10.0 + 4)
    assert not window.state[~window.valid].any()
    with pytest.raises(SystemExit, match=r"training needs \[1, 4\]"):
        recorded.RecordedStates(tmp_path, [1], tmp_path)
    with pytest.raises(SystemExit, match="no files of hidden states"):
        recorded.RecordedStates(examples, [1], tmp_path)
    (tmp_path / "3.safetensors").write_bytes(b"no")
    with pytest.raises(SystemExit, match=r"3\.safetensors is no file of recorded"):
        recorded.RecordedStates(tmp_path, [0], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("last", [7, 8])
def test_recorded_states_are_what_the_head_would_see(
    examples: Path, tmp_path: Path, last: int
) -> None:
    """The same features and goals as ModelOpt computes from the text itself, whether the target's
    last state was recorded after the final norm (8) or before it (7, the last layer's output)."""
    pytest.importorskip("modelopt", reason="needs nvidia-modelopt: pip install 'trtspec[train]'")
    program = importlib.import_module("train_eagle3")
    recorded = importlib.import_module("recorded_states")
    record(tmp_path, [last, 4, 1, 0], range(30, 40, 10))
    window = next(recorded.RecordedStates(tmp_path, [4, 1, 0], TARGET).windows(49, 1, 0))
    assert window.valid.all() and window.normed == (last == 8)
    model = LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    model.set_attn_implementation("eager")
    program.new_head(model, [4, 1, 0], 2)
    model.train()
    seen = []
    model.eagle_module.fc.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        expected = model(input_ids=window.tokens)
        model.eagle_offline = True
        found = model(**window.inputs())
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-4, atol=1e-4)
