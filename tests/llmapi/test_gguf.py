"""A GGUF file wherever a checkpoint is given: engines, texts, chats, drafts, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams, build
from trtspec.builder.available_drafts import available_drafts
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.commands.build import main
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError
from trtspec.llmapi.prompts import load_tokenizer

from ..checkpoints.gguf_vocabularies import END, byte_level
from ..checkpoints.tiny_gguf import tiny

VOCAB = 301
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
CHAT = [{"role": "user", "content": "the cat\n\n1. sat"}]


def write(file: Path, kind: str = "Q4_0", **changes: Any) -> Path:
    model = tiny(kind, VOCAB)
    model.metadata |= byte_level(**changes) | {"tokenizer.chat_template": TEMPLATE}
    return model.write(file)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "model.gguf")


def plan_of(path: Path, **options: Any) -> BuildPlan:
    return plan_build(path, BuildConfig(backend="eager"), **options)


def test_an_engine_needs_its_file_no_more(tmp_path: Path, file: Path) -> None:
    """It has the tokenizer as ordinary files; what is said is the same, text and chat."""
    copy = Path(shutil.copy(file, tmp_path / "copy.gguf"))
    engine = build(copy, output_dir=tmp_path / "engine", backend="eager")
    with LLM(copy, backend="eager") as llm:
        assert llm.config.build.dtype == "float32" and llm.config.target.eos_token_ids == (0,)
        prompts = ["the cat", CHAT[0]["content"]]
        outputs = [output.outputs[0] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
        chat = llm.chat(CHAT, GREEDY).outputs[0].text
    copy.unlink()
    with LLM(engine) as llm:
        again = [output.outputs[0] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
        assert [o.token_ids for o in again] == [o.token_ids for o in outputs]
        assert [o.text for o in again] == [o.text for o in outputs]
        assert llm.chat(CHAT, GREEDY).outputs[0].text == chat
        assert llm.tokenizer.eos_token == END and llm.tokenizer.chat_template == TEMPLATE


def test_drafts(file: Path, tmp_path: Path) -> None:
    """A draft model may be a file too, or lie in a folder alone; the text stays the same."""
    folder = tmp_path / "draft"
    folder.mkdir()
    draft = write(folder / "draft.gguf", "Q8_0")
    with LLM(file, backend="eager", dtype="float32") as llm:
        plain = llm.generate("the cat", GREEDY).outputs[0].token_ids
    (found,) = available_drafts(str(file), [str(draft)])
    assert found.method == "draft_model" and available_drafts(str(file), []) == []
    for given in (draft, folder):
        config = {"method": "draft_model", "model": str(given), "num_speculative_tokens": 2}
        with LLM(file, config, backend="eager", dtype="float32") as llm:
            output = llm.generate("the cat", GREEDY)
        assert output.outputs[0].token_ids == plain and output.metrics.num_draft_tokens > 0


def test_the_plan(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says where floats come from, and is another one for another file or tokenizer."""
    command = ["--checkpoint_dir", str(file), "--output_dir", str(tmp_path / "e"), "--dry_run"]
    assert main([*command, "--backend", "eager"]) == 0
    printed = capsys.readouterr().out
    assert f"target   {file}" in printed and "bfloat16" in printed
    assert (
        "blocks of Q4_0 (model.gguf): " in printed and "weights int4: as the checkpoint" in printed
    )
    plan = plan_of(file)
    moved = Path(shutil.copytree(file.parent, tmp_path / "moved"))
    assert plan_of(moved / file.name).fingerprint == plan.fingerprint
    write(moved / file.name, pre="smollm")
    assert plan_of(moved).fingerprint != plan.fingerprint
    write(moved / file.name, "F32")
    assert "blocks of" not in plan_of(moved).describe()


def test_another_tokenizer(file: Path, tmp_path: Path) -> None:
    """One that is not known can be left out, or another given in its place."""
    other = write(tmp_path / "model.gguf", pre="spam")
    with pytest.raises(CheckpointError, match=r"'spam' .* is not known.*tokenizer=<folder>"):
        LLM(other, backend="eager")
    assert "prompts are token ids" in plan_of(other, skip_tokenizer_init=True).describe()
    with LLM(other, backend="eager", tokenizer=str(file)) as llm:
        assert llm.generate("the cat", GREEDY).outputs[0].token_ids
    assert load_tokenizer(file)("the cat")["input_ids"]
    tiny().write(tmp_path / "bare.gguf")
    with pytest.raises(CheckpointError, match=r"bare\.gguf holds no tokenizer"):
        LLM(tmp_path / "bare.gguf", backend="eager")


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(CheckpointError, match=r"notes\.txt is no GGUF file: .* with b'note'"):
        LLM(tmp_path / "notes.txt", backend="eager")
    for missing in (tmp_path / "model.gguf", "models/model.gguf"):
        with pytest.raises(CheckpointError, match=f"no model '{missing}'"):
            LLM(missing, backend="eager")
