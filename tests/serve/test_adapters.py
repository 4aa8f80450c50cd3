"""Adapters over HTTP: named as models, loaded and unloaded by clients where they may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trtspec import LLM
from trtspec.commands.serve import llm_options, make_parser
from trtspec.errors import ConfigError

from ..llmapi.conftest import TextModel
from .conftest import Server, run_server

BODY = {"prompt": [5, 6, 7, 8], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def write_adapter(folder: Path, seed: int, layers: int, sizes: tuple[int, int]) -> Path:
    """One of the first projection of every layer's feed-forward part."""
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 64, "target_modules": ["up_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    noise = torch.Generator().manual_seed(seed)
    tensors = {}
    for i in range(layers):
        name = f"base_model.model.model.layers.{i}.mlp.up_proj.lora_"
        tensors[f"{name}A.weight"] = torch.randn(4, sizes[0], generator=noise)
        tensors[f"{name}B.weight"] = torch.randn(sizes[1], 4, generator=noise)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture(scope="module")
def root(text_model: TextModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two adapters in it, one beside it, and a link to that."""
    config = json.loads((text_model.folder / "config.json").read_text())
    sizes = config["hidden_size"], config["intermediate_size"]
    above = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("inside/one", "inside/two", "outside")):
        write_adapter(above / name, seed, config["num_hidden_layers"], sizes)
    (above / "inside" / "link").symlink_to(above / "outside")
    (above / "inside" / "loop").symlink_to(above / "inside" / "loop")
    (above / "inside" / "empty").mkdir()
    return above / "inside"


@pytest.fixture(scope="module")
def server(text_model: TextModel, root: Path) -> Iterator[Server]:
    def open_llm() -> LLM:
        modules = [f"first={root / 'one'}"]
        return LLM(text_model.folder, backend="eager", lora_modules=modules, max_loras=2)

    with run_server(open_llm, lora_dir=str(root)) as running:
        yield running


def complete(server: Server, model: str | None) -> str:
    body = BODY if model is None else {**BODY, "model": model}
    answer = server.post(json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == (model or "tiny")
    return str(answer.json()["choices"][0]["text"])


def load(server: Server, name: str, path: str) -> Any:
    return server.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})


def unload(server: Server, name: str) -> Any:
    return server.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_an_adapter_is_a_model(server: Server) -> None:
    assert complete(server, "first") != complete(server, None)
    listed = {each["id"]: each["parent"] for each in server.get("/v1/models").json()["data"]}
    assert listed == {"tiny": None, "first": "tiny"}
    assert server.get("/v1/models/first").json()["parent"] == "tiny"
    chat = {"model": "first", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    assert server.post("/v1/chat/completions", json=chat).json()["model"] == "first"
    assert 'spec_decode_adapter_acceptance_length{lora_name="first"' in server.get("/metrics").text


def test_load_and_unload(server: Server) -> None:
    missing = server.post(json={**BODY, "model": "second"})
    assert missing.status_code == 404 and "tiny, first" in missing.text
    assert load(server, "second", "two").status_code == 200
    assert load(server, "second", "two").status_code == 200  # the same again
    assert len({complete(server, name) for name in (None, "first", "second")}) == 3
    other = load(server, "second", "one")
    assert other.status_code == 400 and "unload it first" in other.text
    assert unload(server, "second").status_code == 200
    assert unload(server, "second").status_code == 404
    assert server.post(json={**BODY, "model": "second"}).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["../outside", "link", "/etc", "one/../../outside", "none", "one\0", "..", "a" * 300, "loop"],
)
def test_paths_stay_below_the_folder(server: Server, path: str) -> None:
    answer = load(server, "other", path)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "lora_path"
    assert "no folder below" in answer.text


def test_refusals(server: Server) -> None:
    assert "has no adapter_config.json" in load(server, "other", "empty").text
    assert "the model itself" in load(server, "tiny", "one").text
    assert "the model itself" in unload(server, "tiny").text
    assert load(server, "", "one").status_code == 400
    assert load(server, "a\nb", "one").status_code == 400


def test_clients_may_not_unless_they_are_let(text_model: TextModel, root: Path) -> None:
    def open_llm() -> LLM:
        return LLM(text_model.folder, backend="eager", enable_lora=True)

    with run_server(open_llm) as running:
        for answer in (load(running, "other", str(root / "one")), unload(running, "other")):
            assert answer.status_code == 403 and "--lora-dir" in answer.text


@pytest.mark.parametrize("named", [[], ["--served-model-name", "other", "tiny"]])
def test_no_adapter_is_called_as_the_model(named: list[str]) -> None:
    """Who asks for it would get the model, without a word."""
    args = make_parser().parse_args(["tiny", *named, "--lora-modules", "a=x", "tiny=y"])
    with pytest.raises(ConfigError, match="'tiny' is a name of the model itself"):
        llm_options(args)
