"""What a plan takes from the target's tokenizer, and what it says of one that is no use."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

import trtspec.llmapi.llm as llm_module
from trtspec import LLM, build
from trtspec.builder.checkpoints import read_draft
from trtspec.builder.pair import fit_pair
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.builder.tokenizer import read_tokenizer, save_tokenizer, tokenizer_files
from trtspec.commands.build import main
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError

from ..e2e.helpers import TinyModels
from ..e2e.tiny_tokenizer import END, save_bytes

VOCAB = 203  # of the models; 0 is the tokenizer's end


@pytest.fixture
def folder(models: TinyModels, tmp_path: Path) -> Path:
    """A copy with a tokenizer, whose configs name no end of text."""
    copy = Path(shutil.copytree(models.folder("llama"), tmp_path / "model"))
    save_bytes(copy, 300)
    say(copy, "config.json", eos_token_id=None)
    (copy / "generation_config.json").unlink(missing_ok=True)
    return copy


def say(folder: Path, file: str, **values: object) -> None:
    path = folder / file
    config = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(config | values))


def add_tokens(folder: Path, texts: dict[str, int], special: bool = True) -> None:
    """In place of the words that have these ids."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    add_words(tokenizer, texts)
    first = tokenizer["added_tokens"][0]
    for text, i in texts.items():
        tokenizer["added_tokens"].append({**first, "id": i, "content": text, "special": special})
    tokenizer["added_tokens"].sort(key=lambda token: token["id"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def add_words(tokenizer: dict[str, Any], texts: dict[str, int]) -> None:
    model, ids = tokenizer["model"], set(texts.values())
    others = {text: i for text, i in model["vocab"].items() if i not in ids}
    model |= {"vocab": others | texts, "merges": []}


def rename_end(folder: Path, text: str) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace(END, text))


def plan_of(folder: Path, **options: bool) -> BuildPlan:
    return plan_build(folder, BuildConfig(backend="eager"), **options)


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, (0,)),
        ({"config.json": 7}, (7, 0)),
        ({"generation_config.json": [7, 8]}, (7, 8, 0)),
        ({"config.json": 0}, (0,)),
        ({"generation_config.json": [7, 0]}, (7, 0)),
    ],
)
def test_a_text_ends_where_the_tokenizer_says(
    folder: Path, files: dict[str, object], ends: tuple[int, ...]
) -> None:
    """Beside what the configs say; the plan says so, where they do not."""
    for file, value in files.items():
        say(folder, file, eos_token_id=value)
    plan = plan_of(folder)
    assert plan.engine.target.eos_token_ids == ends
    named = any(0 in (v if isinstance(v, list) else [v]) for v in files.values())
    assert (f"because  a text ends at token 0 ({END}) too" in plan.describe()) == (not named)


def test_an_end_that_the_model_cannot_say(folder: Path) -> None:
    """Tokens behind the model's vocabulary."""
    say(folder, "tokenizer_config.json", eos_token="<far>")
    rename_end(folder, "<|zero|>")
    add_tokens(folder, {"<far>": 400, "<|im_end|>": 401})
    plan = plan_of(folder)
    assert plan.engine.target.eos_token_ids == () and "a text ends" not in plan.describe()


def test_a_text_ends_at_special_tokens_that_are_known_for_it(folder: Path) -> None:
    """Not at such texts that are words or tokens to be shown; and not at one that is no end beside
    others."""
    say(folder, "generation_config.json", eos_token_id=[7])
    add_tokens(folder, {"<|im_end|>": 201, "<|endoftext|>": 202, "<|im_start|>": 200})
    add_tokens(folder, {"<|eot_id|>": 199}, special=False)
    plan = plan_of(folder)
    assert plan.engine.target.eos_token_ids == (7, 0, 201, 202)
    line = f"token 0 ({END}), 201 (<|im_end|>), 202 (<|endoftext|>) too: the tokenizer says so"
    assert line in plan.describe()
    say(folder, "tokenizer_config.json", eos_token="<|endoftext|>")
    add_tokens(folder, {"<|return|>": 198, "<|call|>": 197})
    assert set(plan_of(folder).engine.target.eos_token_ids) == {7, 197, 198, 201, 202}


def test_generation_stops_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the checkpoint's tokenizer, and by one given in its place."""
    with LLM(folder, backend="eager") as llm:
        assert llm.config.target.eos_token_ids == (0,)
    for path in folder.glob("tokenizer*"):
        path.rename(folder.parent / path.name)
    say(folder.parent, "config.json", **json.loads((folder / "config.json").read_text()))
    with LLM(build(folder, backend="eager"), tokenizer=str(folder.parent)) as llm:
        assert llm.config.target.eos_token_ids == ()
        made = []
        create = llm_module.Request.create
        monkeypatch.setattr(
            llm_module.Request, "create", lambda **kw: made.append(kw) or create(**kw)
        )
        llm.generate([1, 2, 3], llm_module.SamplingParams(max_tokens=2))
        llm.generate([1, 2, 3], llm_module.SamplingParams(max_tokens=2, ignore_eos=True))
        assert [request["eos_token_ids"] for request in made] == [(0,), ()]


def refuse_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*args: object, **options: object) -> None:
        raise AssertionError("built")

    monkeypatch.setattr("trtspec.llmapi.opened.cached_engine", built)
    monkeypatch.setattr("trtspec.commands.build.build_engine", built)


@pytest.mark.parametrize("content", ["{", "", "[]", '{"version": "1.0"}'])
def test_a_damaged_tokenizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    """Before anything is built, by the user's own path; unless it is not wanted."""
    refuse_builds(monkeypatch)
    (folder / "tokenizer.json").write_text(content)
    words = rf"the tokenizer in {folder} cannot be read.*skip_tokenizer_init"
    with pytest.raises(CheckpointError, match=f"(?s){words}"):
        LLM(folder, backend="eager")
    command = ["--checkpoint_dir", str(folder), "--output_dir", str(folder / "engine")]
    assert main(command) == 1
    assert f"the tokenizer in {folder} cannot be read" in capsys.readouterr().err
    with pytest.raises(AssertionError, match="built"):
        LLM(folder, backend="eager", skip_tokenizer_init=True)
    assert main([*command, "--skip_tokenizer_init", "--dry_run"]) == 0
    assert "because  prompts are token ids" in capsys.readouterr().out


def test_a_missing_tokenizer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_builds(monkeypatch)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=rf"{folder} holds no tokenizer"):
        LLM(folder, backend="eager")
    with pytest.raises(AssertionError, match="built"):
        LLM(folder, backend="eager", skip_tokenizer_init=True)
    monkeypatch.setattr(logging.getLogger("trtspec"), "propagate", True)
    caplog.clear()
    plan_of(folder)
    assert f"{folder} holds no tokenizer" in caplog.text
    caplog.clear()
    plan_of(folder, skip_tokenizer_init=True)
    assert "tokenizer" not in caplog.text


def test_a_pair_with_a_damaged_tokenizer(folder: Path, tmp_path: Path) -> None:
    draft = Path(shutil.copytree(folder, tmp_path / "draft"))
    target = plan_of(folder).engine.target
    found = read_draft(draft, target)
    (draft / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=f"the tokenizer in {draft} cannot be read"):
        fit_pair(folder, target, found)
    assert fit_pair(folder, target, found, skip_damaged=True) == (found, [])


RAG, TEXT = "{{ documents }}", "{{ messages }}"
LISTED = [{"name": "default", "template": TEXT}, {"name": "rag", "template": RAG}]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"chat_template.jinja": TEXT, "additional_chat_templates/rag.jinja": RAG},
            {"default": TEXT, "rag": RAG},
        ),
        ({"additional_chat_templates/rag.jinja": RAG}, {"rag": RAG}),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": LISTED})},
            {"default": TEXT, "rag": RAG},
        ),
        ({"chat_template.json": json.dumps({"chat_template": TEXT})}, TEXT),
        (
            {"chat_template.json": '{"chat_template": "ignored"}', "chat_template.jinja": TEXT},
            TEXT,
        ),
        ({}, None),
    ],
)  # fmt: skip
def test_chat_templates_are_read_and_copied(
    folder: Path, tmp_path: Path, files: dict[str, str], expected: object
) -> None:
    """From every place that transformers has had for them."""
    (folder / "chat_template.jinja").unlink()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    copy = tmp_path / "copy"
    copy.mkdir()
    save_tokenizer(folder, copy)
    assert read_tokenizer(folder).chat_template == expected
    assert read_tokenizer(copy).chat_template == expected


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"chat_template": ["a"]}'])
def test_a_damaged_chat_template_file(folder: Path, content: str) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(content)
    with pytest.raises(CheckpointError, match=f"the tokenizer in {folder} cannot be read"):
        read_tokenizer(folder)


def test_versions_of_a_tokenizer_go_along(folder: Path) -> None:
    """tokenizer_config.json may prefer one of them to tokenizer.json."""
    names = {"tokenizer.4.0.0.json", "tokenizer.model.v3", "tekken.json", "tiktoken.model"}
    for name in names:
        (folder / name).write_text("")
    assert names <= {path.name for path in tokenizer_files(folder)}
