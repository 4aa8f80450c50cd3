"""Hidden states in files: those of the target over the whole text, whatever happened on the way."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import trtspec.speculative.hidden_states.files as hidden_files
from checkpoint_converters import load_checkpoint
from trtspec import LLM, RequestOutput, SamplingParams, build
from trtspec.errors import ConfigError, EngineError
from trtspec.models.causal_lm import CausalLM

from .. import inside
from ..models.paged import Feed, PagedModel
from .helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, watch

LAYERS = (1, -1, 2, 0)  # of a target with two layers: 2 is the output of the final norm
SHARED = random_prompt(80, 20)
PROMPTS = [
    random_prompt(81, 30), [5], [*SHARED, 9], [*SHARED, 11], SHARED, random_prompt(82, 17),
    random_prompt(83, 8), random_prompt(84, 2),
]  # fmt: skip
PARAMS = SamplingParams(max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, seed=3)
# Sums of float32 in another order: a prompt at once, or a row at a time.
TOLERANCE = {"rtol": 1e-5, "atol": 2e-5}


def extract(folder: Path, layers: Sequence[int] = LAYERS, **options: Any) -> dict[str, Any]:
    method = {"method": "extract_hidden_states", "capture_layers": list(layers)}
    return {**method, "shared_storage_path": str(folder), **options}


def read(output: RequestOutput, sample: int = 0) -> tuple[list[int], Tensor]:
    params = output.outputs[sample].kv_transfer_params
    assert params is not None
    with safe_open(params["hidden_states_path"], framework="pt") as file:
        assert set(file.keys()) == {"hidden_states", "token_ids"}
        assert file.metadata()["capture_layers"] == json.dumps(list(LAYERS))
        ids = file.get_tensor("token_ids")
        assert ids.dtype == torch.int64
        return ids.tolist(), file.get_tensor("hidden_states")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Reference:
    """The eager target, fed a whole text in one call."""

    def __init__(self, checkpoint: Path) -> None:
        loaded = load_checkpoint(checkpoint)
        self._model = CausalLM(loaded.config, torch.float32, LAYERS)
        self._model.load_weights(loaded)

    @torch.no_grad()
    def states(self, text: list[int]) -> Tensor:
        paged = PagedModel(self._model, requests=1)
        arguments = paged.arguments({0: Feed(text, 0)})
        captured = self._model(*arguments, paged.caches)[1]
        return captured.view(len(text), len(LAYERS), -1)

    def check(self, output: RequestOutput, sample: int = 0) -> None:
        """Every row but that of the newest token, once and in order."""
        text, states = read(output, sample)
        assert text == [*output.prompt_token_ids, *output.outputs[sample].token_ids][:-1]
        torch.testing.assert_close(states, self.states(text), **TOLERANCE)


@pytest.fixture(scope="module")
def reference(models: TinyModels) -> Reference:
    return Reference(models.folder("llama"))


@pytest.mark.parametrize(
    ("options", "preempts"),
    [
        ({}, False),
        ({"max_num_tokens": 9}, False),
        ({"kv_cache_config": {"max_tokens": 112}}, True),
        ({"kv_cache_config": {"max_tokens": 112}, "max_num_tokens": 11}, True),
        ({"max_batch_size": 1}, False),
    ],
    ids=["together", "chunked", "preempted", "preempted_chunked", "alone"],
)
def test_states_of_the_whole_text(
    models: TinyModels,
    reference: Reference,
    tmp_path: Path,
    options: dict[str, Any],
    preempts: bool,
) -> None:
    with open_llm(models.folder("llama"), **options) as plain:
        expected = [tokens(plain.generate(PROMPTS, p, use_tqdm=False)) for p in (PARAMS, SAMPLED)]
    with open_llm(models.folder("llama"), extract(tmp_path), **options) as llm:
        steps = watch(llm)
        for params, texts in zip((PARAMS, SAMPLED), expected, strict=True):
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            assert tokens(outputs) == texts
            for output in outputs:
                reference.check(output)
        assert (sum(step.num_preempted for step in steps) > 0) == preempts
        assert llm.get_metrics()["num_draft_tokens"] == 0
        assert_no_leak(llm)
        assert inside.drafter(llm)._rows == {}  # type: ignore[attr-defined]
    assert len(files(tmp_path)) == 2 * len(PROMPTS)


# Compiled targets that give states are run with EAGLE-3 heads for every change.
@pytest.mark.matrix
def test_a_compiled_engine(models: TinyModels, reference: Reference, tmp_path: Path) -> None:
    options = {"backend": "aoti", "max_num_tokens": 16, "max_batch_size": 8}
    with open_llm(models.folder("llama"), extract(tmp_path), **options) as llm:
        for output in llm.generate(PROMPTS, SAMPLED, use_tqdm=False):
            reference.check(output)


def test_layer_inputs_as_vllm_names_them(models: TinyModels, tmp_path: Path) -> None:
    """Against transformers, which counts the same way but gives the last state normed."""
    ids = [1, 2, 0]
    config = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    hf = models.hf("llama")
    with open_llm(models.folder("llama"), config, kv_transfer_config=transfer) as llm:
        assert llm.config.extract_layers == (0, 1, -1)
        output = llm.generate(PROMPTS[0], PARAMS)
    path = Path(output.kv_transfer_params["hidden_states_path"])
    assert path.parent == tmp_path
    with safe_open(path, framework="pt") as file:
        text, states = file.get_tensor("token_ids"), file.get_tensor("hidden_states")
    with torch.no_grad():
        seen = hf.model(text[None], output_hidden_states=True).hidden_states
        normed = hf.model.norm(states[:, 1])
    for column, layer in ((0, 1), (2, 0)):
        torch.testing.assert_close(states[:, column], seen[layer][0], **TOLERANCE)
    torch.testing.assert_close(normed, seen[2][0], **TOLERANCE)


def test_samples_and_streams(models: TinyModels, reference: Reference, tmp_path: Path) -> None:
    """Each of n sequences has its file; a stream ends with the path, not before."""
    sampled = SamplingParams(max_tokens=9, temperature=1.0, seed=1, n=3)
    with open_llm(models.folder("llama"), extract(tmp_path)) as llm:
        output = llm.generate(PROMPTS[0], sampled)
        for sample in range(3):
            reference.check(output, sample)
        snapshots = list(llm.generate_async(PROMPTS[5], PARAMS, streaming=True))
    assert len({c.kv_transfer_params["hidden_states_path"] for c in output.outputs}) == 3
    assert [s.kv_transfer_params is None for s in snapshots] == [True] * (len(snapshots) - 1) + [
        False
    ]
    assert len(snapshots[-2].outputs[0].token_ids) == len(snapshots[-1].outputs[0].token_ids) == 24
    reference.check(snapshots[-1])


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), RuntimeError("boom")])
def test_a_file_that_cannot_be_written(
    models: TinyModels,
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
) -> None:
    """Its request fails with the reason and leaves nothing; the others of its batch go on."""
    write = hidden_files._write_tensor

    def full(file: Any, tensor: Tensor) -> None:
        write(file, tensor)
        if tensor.dtype == torch.int64 and tensor[:30].tolist() == PROMPTS[0]:
            raise failure

    monkeypatch.setattr(hidden_files, "_write_tensor", full)
    with open_llm(models.folder("llama"), extract(tmp_path)) as llm:
        failed, *others = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert isinstance(failed.error, EngineError)
        assert str(failure) in str(failed.error) and "shared_storage_path" in str(failed.error)
        assert f"{53 * 4 * 64 * 4} bytes" in str(failed.error)
        assert failed.outputs[0].finish_reason == "error"
        assert failed.kv_transfer_params is None
        assert len(files(tmp_path)) == len(others)
        for output in others:
            reference.check(output)
        with pytest.raises(EngineError, match="cannot be written"):
            llm.generate(PROMPTS[0], PARAMS)
        assert_no_leak(llm)


def test_aborts_leave_no_file(
    models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in mid text nor while the file is written."""
    write, begun, go_on = hidden_files._write_tensor, threading.Event(), threading.Event()

    def slow(file: Any, tensor: Tensor) -> None:
        begun.set()
        assert go_on.wait(30)
        write(file, tensor)

    monkeypatch.setattr(hidden_files, "_write_tensor", slow)
    with open_llm(models.folder("llama"), extract(tmp_path)) as llm:
        running = llm.generate_async(PROMPTS[0], SamplingParams(max_tokens=90, ignore_eos=True))
        running.abort()
        assert running.result(30).outputs[0].finish_reason == "abort"
        assert not begun.is_set()
        ended = llm.generate_async(PROMPTS[0], PARAMS)
        assert begun.wait(30)
        time.sleep(0.05)
        assert not ended.output.finished  # its text has ended
        ended.abort()
        assert ended.result(30).outputs[0].finish_reason == "abort"
        assert ended.output.kv_transfer_params is None
        go_on.set()
        kept = llm.generate(PROMPTS[6], PARAMS)
        assert files(tmp_path) == [Path(kept.kv_transfer_params["hidden_states_path"]).name]


def test_a_slow_disk_stops_nobody(
    models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a file is written, other requests generate."""
    write, go_on = hidden_files._write_tensor, threading.Event()

    def slow(file: Any, tensor: Tensor) -> None:
        if tensor.dtype == torch.int64 and tensor[:2].tolist() == PROMPTS[7]:
            assert go_on.wait(30)
        write(file, tensor)

    monkeypatch.setattr(hidden_files, "_write_tensor", slow)
    with open_llm(models.folder("llama"), extract(tmp_path)) as llm:
        waiting = llm.generate_async(PROMPTS[7], SamplingParams(max_tokens=2))
        tokens(llm.generate(PROMPTS[:3], PARAMS, use_tqdm=False))
        assert not waiting.output.finished
        go_on.set()
        assert waiting.result(30).kv_transfer_params is not None


def test_an_engine_folder(models: TinyModels, reference: Reference, tmp_path: Path) -> None:
    """The layers are fixed at build, the folder of the files is not; without the method it serves
    as any other."""
    engine, out = tmp_path / "engine", tmp_path / "files"
    config = {"method": "extract_hidden_states", "capture_layers": list(LAYERS)}
    build(models.folder("llama"), config, engine, backend="eager", dtype="float32")
    only_path = {"method": "extract_hidden_states", "shared_storage_path": str(out)}
    with LLM(engine, only_path, skip_tokenizer_init=True) as llm:
        reference.check(llm.generate(PROMPTS[0], PARAMS))
    for config in (None, False, ngram(3)):
        with LLM(engine, config, skip_tokenizer_init=True) as llm:
            assert llm.generate(PROMPTS[0], PARAMS).kv_transfer_params is None
    assert len(files(out)) == 1
    for layers in ([0, 1], [0, 1, 2, -1]):
        with pytest.raises(ConfigError, match=r"the engine was built for \[1, -1, 2, 0\]"):
            LLM(engine, extract(out, layers), skip_tokenizer_init=True)
    with open_llm(models.folder("llama")) as llm:
        plain = llm.config
    assert plain.extract_layers == ()


def test_refused_before_anything_is_built(models: TinyModels, tmp_path: Path) -> None:
    target = models.folder("llama")
    file = tmp_path / "file"
    file.touch()
    inputs = {"capture_layers": None, "eagle_aux_hidden_state_layer_ids": [0, 3]}
    for config, words in (
        (extract(tmp_path, [3]), "output of layer 3; the target has 2 layers, so -1 .* to 2"),
        (extract(tmp_path, **inputs), "input of layer 3; the target has 2 layers, so 0 .* to 2"),
        ({**extract(tmp_path), "capture_layers": None}, "needs the layers"),
        ({**extract(tmp_path), "shared_storage_path": None}, "needs shared_storage_path"),
        (extract(file / "below"), "cannot be written to .*give a folder"),
        (extract(Path("/proc/nowhere")), "'/proc/nowhere' cannot be written to"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_llm(target, config)
    transfer = {"kv_connector": "ExampleHiddenStatesConnector"}
    with pytest.raises(ConfigError, match="speculative method is ngram"):
        open_llm(target, ngram(3), kv_transfer_config=transfer)
    with pytest.raises(ConfigError, match="needs shared_storage_path"):
        config = {**extract(tmp_path), "shared_storage_path": None}
        open_llm(target, config, kv_transfer_config=transfer)
