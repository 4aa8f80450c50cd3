"""The method extract_hidden_states behind the server: where a client learns of its file."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import trtspec.speculative.hidden_states.files as hidden_files
from trtspec.commands.serve import llm_options, make_parser, speculative_config
from trtspec.errors import ConfigError

from ..e2e.helpers import open_llm
from ..llmapi.conftest import TextModel
from .conftest import Server, run_server

ASK = {"prompt": "the cat sat", "max_tokens": 6, "ignore_eos": True}


@pytest.fixture
def server(text_model: TextModel, tmp_path: Path) -> Iterator[Server]:
    config = {
        "method": "extract_hidden_states",
        "capture_layers": [0, 2],
        "shared_storage_path": str(tmp_path),
    }
    with run_server(
        lambda: open_llm(text_model.folder, config, skip_tokenizer_init=False)
    ) as running:
        yield running


def check(params: dict[str, str], tokens: int) -> str:
    loaded = load_file(params["hidden_states_path"])
    assert loaded["hidden_states"].shape == (tokens, 2, 48)
    return params["hidden_states_path"]


def test_the_path_is_in_the_answer(server: Server, tmp_path: Path) -> None:
    whole = server.post(json={**ASK, "n": 2, "temperature": 1.0}).json()
    rows = [whole["usage"]["prompt_tokens"] + 6 - 1] * 2
    paths = {check(c["kv_transfer_params"], n) for c, n in zip(whole["choices"], rows, strict=True)}
    assert len(paths) == 2
    assert whole["kv_transfer_params"] == whole["choices"][0]["kv_transfer_params"]
    chat = {"messages": [{"role": "user", "content": "hat"}], "max_tokens": 3, "ignore_eos": True}
    answer = server.post("/v1/chat/completions", json=chat).json()
    check(answer["kv_transfer_params"], answer["usage"]["prompt_tokens"] + 2)
    lines = server.post(json={**ASK, "stream": True}).text.splitlines()
    chunks = [json.loads(x[6:]) for x in lines if x.startswith("data: {")]
    *before, last = [choice for chunk in chunks for choice in chunk["choices"]]
    assert last["finish_reason"] == "length"
    check(last["kv_transfer_params"], rows[0])
    assert not any("kv_transfer_params" in choice for choice in before)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_full_disk_is_a_fault_of_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hidden_files, "_write_tensor", full)
    response = server.post(json=ASK)
    assert response.status_code == 500
    assert "No space left on device" in response.json()["error"]["message"]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert server.post(json=ASK).status_code == 200


def test_flags() -> None:
    speculation = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": "/dev/shm/hs"},
    }
    flags = ["m", "--speculative-config", json.dumps(speculation)]
    args = make_parser().parse_args([*flags, "--kv-transfer-config", json.dumps(transfer)])
    assert speculative_config(args) == speculation
    assert llm_options(args)["kv_transfer_config"] == transfer
    assert "kv_transfer_config" not in llm_options(make_parser().parse_args(flags))
    for wrong, words in (
        ("{", "--kv-transfer-config is not JSON"),
        ('{"kv_role": "x"}', "missing"),
    ):
        args = make_parser().parse_args([*flags, "--kv-transfer-config", wrong])
        with pytest.raises(ConfigError, match=words):
            llm_options(args)
