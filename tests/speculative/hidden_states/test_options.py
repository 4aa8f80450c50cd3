"""extract_hidden_states: two conventions of layers, vLLM's spellings, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.errors import ConfigError
from trtspec.llmapi.options import LLMConfig
from trtspec.speculative.hidden_states.options import ExtractHiddenStatesConfig, KvTransferConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.speculative.registry import method_name

BASE = {"method": "extract_hidden_states"}
CONNECTOR = {"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"}


def parse(**options: Any) -> ExtractHiddenStatesConfig:
    config = parse_speculative_config({**BASE, **options})
    assert isinstance(config, ExtractHiddenStatesConfig)
    return config


def nested(ids: list[int]) -> dict[str, Any]:
    return {"draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}}}


def test_inputs_become_outputs() -> None:
    """Flat or nested, in the order asked; 0 is the embeddings, L the last layer's output."""
    for options in ({"eagle_aux_hidden_state_layer_ids": [4, 0, 2]}, nested([4, 0, 2])):
        config = parse(num_speculative_tokens=1, **options)
        assert config.capture_layers == config.captured_layers(4) == (3, -1, 1)
        assert config.note is not None
        assert "[4, 0, 2] names layer inputs" in config.note
        assert "outputs of layers 3, the embeddings, 1" in config.note
        assert parse_speculative_config(speculative_to_dict(config)) == config
    own = parse(capture_layers=[4, -1, 0])
    assert own.captured_layers(4) == (4, -1, 0) and own.note is None
    assert own.num_rows == 1
    both = parse(capture_layers=[3, -1, 1], eagle_aux_hidden_state_layer_ids=[4, 0, 2])
    assert both.capture_layers == (3, -1, 1)


def test_transfer_config() -> None:
    extra = {"shared_storage_path": "/a", "num_writer_threads": 3, "use_synchronization_lock": True}
    options = LLMConfig(kv_transfer_config={**CONNECTOR, "kv_connector_extra_config": extra})
    transfer = options.kv_transfer_config
    assert isinstance(transfer, KvTransferConfig)
    config = parse(capture_layers=[0]).with_transfer(transfer)
    assert (config.shared_storage_path, config.num_writer_threads) == ("/a", 3)
    assert parse(shared_storage_path="/a").with_transfer(transfer).shared_storage_path == "/a"
    with pytest.raises(ConfigError, match="'/b' in speculative_config and '/a' in kv_transfer"):
        parse(shared_storage_path="/b").with_transfer(transfer)
    plain = KvTransferConfig(**CONNECTOR)
    config = parse(shared_storage_path="/b", num_writer_threads=2).with_transfer(plain)
    assert (config.shared_storage_path, config.num_writer_threads) == ("/b", 2)


def test_an_engine_decides() -> None:
    assert parse(shared_storage_path="/a").over_engine((1, -1)).capture_layers == (1, -1)
    assert parse(eagle_aux_hidden_state_layer_ids=[2, 0]).over_engine((1, -1)).note is not None
    with pytest.raises(ConfigError, match=r"\[2, 0\].*was built for \[1, -1\].*fixed at build"):
        parse(capture_layers=[2, 0]).over_engine((1, -1))
    with pytest.raises(ConfigError, match="hands out no hidden states; rebuild"):
        parse(capture_layers=[0]).over_engine(())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capture_layers": []}, "capture_layers is empty"),
        (nested([]), "layer_ids is empty"),
        ({"capture_layers": [0, -2]}, "has -2; the lowest is -1"),
        (nested([-1, 2]), "has -1; the lowest is 0"),
        ({"capture_layers": [1, 1]}, "names a layer twice"),
        ({"capture_layers": ["1"]}, "must be int, got str"),
        (
            {"capture_layers": [1], "eagle_aux_hidden_state_layer_ids": [1]},
            r"\[1\] names layer inputs \(outputs \[0\]\), but capture_layers is \[1\]",
        ),
        (
            {**nested([1]), "eagle_aux_hidden_state_layer_ids": [2]},
            r"is \[2\] and, in draft_model_config, \[1\]",
        ),
        ({"draft_model_config": {"hf_config": {}}}, "missing option"),
        ({"draft_model_config": {"hf_config": {"layers": [1]}}}, "unknown option `layers`"),
        ({"num_speculative_tokens": 2}, "max_draft_len=2.*drafts nothing.*give 1"),
        ({"simulate_acceptance": [0.5]}, "nothing that could be accepted"),
        ({"num_writer_threads": 0}, "=0 must be between 1 and 64"),
        ({"model": "d"}, "nothing is drafted"),
        ({"topk": 2}, "nothing is drafted"),
        ({"kv_transfer_config": {}}, "stands beside speculative_config"),
    ],
)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(**options)


def test_what_is_no_transfer_config() -> None:
    assert LLMConfig(kv_transfer_config=None).kv_transfer_config is None
    transfer = KvTransferConfig(**CONNECTOR)
    assert LLMConfig(kv_transfer_config=transfer).kv_transfer_config is transfer
    with pytest.raises(
        ConfigError, match="LLMConfig: `kv_transfer_config` must be KvTransferConfig or None, got i"
    ):
        LLMConfig(kv_transfer_config=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_connector": "LMCacheConnector"}, "'LMCacheConnector' is not available"),
        ({"kv_role": "kv_both"}, "'kv_both' is refused: hidden states are only written"),
        ({"kv_connector_extra_config": {"allow_custom_save_path": True}}, "chooses the names"),
        ({"kv_connector_extra_config": {"path": "/a"}}, "unknown option `path`"),
    ],
)
def test_transfer_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLMConfig(kv_transfer_config={**CONNECTOR, **change})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capture_layers": [5]}, "output of layer 5; the target has 4 layers, so -1 .* to 4"),
        (nested([5]), "input of layer 5; the target has 4 layers, so 0 .* to 4"),
        ({}, "needs the layers.*give capture_layers"),
    ],
)
def test_layers_that_the_target_lacks(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(**options).captured_layers(4)


def test_method_name() -> None:
    for name in ("extract_hidden_states", "EXTRACT_HIDDEN_STATES", "extract-hidden-states"):
        assert method_name(name) == "extract_hidden_states"
