"""ExtractHiddenStatesConfig: no drafts; the target's hidden states are written to files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from trtspec.config.decoding import DecodingConfig, DraftsAtHand
from trtspec.config.speculative_keys import COMMON_ALIASES, COMMON_FOREIGN
from trtspec.config.strict import Foreign, strict_config
from trtspec.errors import ConfigError
from trtspec.log import logger
from trtspec.speculative.hidden_states.files import check_storage

EAGLE_KEY = "eagle_aux_hidden_state_layer_ids"
MAX_WRITER_THREADS = 64

_FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys(
        ("model", "speculative_model", "speculative_model_dir", "draft_model"),
        Foreign("hidden states are written, nothing is drafted; leave it out", (None,)),
    ),
    **dict.fromkeys(
        (
            *("topk", "eagle_topk", "speculative_eagle_topk", "num_steps"),
            *("num_draft_tokens", "speculative_num_draft_tokens", "max_total_draft_tokens"),
            *("prompt_lookup_min", "prompt_lookup_max", "max_matching_ngram_size"),
        ),
        Foreign("hidden states are written, nothing is drafted; leave it out", (None,)),
    ),
    "kv_transfer_config": Foreign(
        "it stands beside speculative_config; or give shared_storage_path here"
    ),
}


@strict_config()
@dataclass(frozen=True, kw_only=True)
class HiddenStatesModelConfig:
    """The part of a draft's ``hf_config`` that names the hidden states, as vLLM's users write
    it."""

    eagle_aux_hidden_state_layer_ids: tuple[int, ...]


@strict_config(foreign={"model": Foreign("there is no draft model", (None,))})
@dataclass(frozen=True, kw_only=True)
class HiddenStatesDraftConfig:
    """vLLM's ``draft_model_config`` of this method."""

    hf_config: HiddenStatesModelConfig


@strict_config(
    foreign={
        "use_synchronization_lock": Foreign(
            "a file gets its name once it is whole, so there is no lock; give True or False",
            (None, True, False),
        ),
        "allow_custom_save_path": Foreign("the server chooses the names of files"),
    }
)
@dataclass(frozen=True, kw_only=True)
class HiddenStatesConnectorConfig:
    """vLLM's ``kv_connector_extra_config`` of the connector that writes hidden states."""

    shared_storage_path: str | None = None
    num_writer_threads: int | None = None


@strict_config(
    foreign={
        "kv_rank": Foreign("caches are not transferred", (None, 0)),
        "kv_parallel_size": Foreign("caches are not transferred", (None, 1)),
        "engine_id": Foreign("caches are not transferred", (None,)),
        "kv_buffer_size": Foreign("caches are not transferred", (None,)),
        "kv_load_failure_policy": Foreign("nothing is loaded", (None, "fail")),
    }
)
@dataclass(frozen=True, kw_only=True)
class KvTransferConfig:
    """vLLM's ``kv_transfer_config``, as far as it says where hidden states are written."""

    kv_connector: str
    kv_role: str = "kv_producer"
    kv_connector_extra_config: HiddenStatesConnectorConfig = HiddenStatesConnectorConfig()

    def __post_init__(self) -> None:
        if self.kv_connector != "ExampleHiddenStatesConnector":
            raise ConfigError(
                f"kv_connector {self.kv_connector!r} is not available: caches are not transferred, "
                "and hidden states are written to files by 'ExampleHiddenStatesConnector'"
            )
        if self.kv_role != "kv_producer":
            raise ConfigError(
                f"kv_role={self.kv_role!r} is refused: hidden states are only written; give "
                "'kv_producer'"
            )


@strict_config(
    aliases=COMMON_ALIASES,
    foreign={**COMMON_FOREIGN, **_FOREIGN},
    none_means_default=True,
)
@dataclass(frozen=True, kw_only=True)
class ExtractHiddenStatesConfig(DecodingConfig):
    """Nothing is drafted: the target runs as without speculation, and the hidden states of each
    request are written to a safetensors file in ``shared_storage_path``, to train drafts with.

    Which hidden states, in the order of the file, in one of two conventions. capture_layers: the
    OUTPUT of each of these 0-based layers, -1 for the embeddings, the number of layers for the
    output of the final norm; or the name of a trainable method: what its training needs for this
    target. eagle_aux_hidden_state_layer_ids: vLLM's, here or in `draft_model_config`: the INPUT of
    each of these layers; 0 for the embeddings, the number of layers for the last layer's output
    before the final norm. They are converted, so that `capture_layers` always holds what was meant,
    as numbers once `resolve` knows the target. By default those that an engine folder was built
    for.

    num_writer_threads: files written at the same time. max_draft_len (`num_speculative_tokens`) may
    be given as 1, as vLLM requires.
    """

    method: ClassVar[str] = "extract_hidden_states"
    stands_alone: ClassVar[str | None] = "it drafts nothing, and takes a run of its own"

    max_draft_len: int = 1
    capture_layers: tuple[int, ...] | str | None = None
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    draft_model_config: HiddenStatesDraftConfig | None = None
    shared_storage_path: str | None = None
    num_writer_threads: int = 8

    def __post_init__(self) -> None:
        self._check_common()
        if self.max_draft_len != 1:
            raise ConfigError(
                f"max_draft_len={self.max_draft_len}: method {self.method} drafts nothing; leave "
                "it out, or give 1"
            )
        if self.simulate_acceptance is not None:
            raise ConfigError(
                f"simulate_acceptance={list(self.simulate_acceptance)}: method {self.method} "
                "drafts nothing that could be accepted; leave it out"
            )
        if self.adaptive:
            raise ConfigError(
                f"adaptive=True: method {self.method} drafts nothing that could be adapted; leave "
                "it out"
            )
        if not 1 <= self.num_writer_threads <= MAX_WRITER_THREADS:
            raise ConfigError(
                f"num_writer_threads={self.num_writer_threads} must be between 1 and "
                f"{MAX_WRITER_THREADS}"
            )
        self._read_inputs()
        if self.capture_layers is not None and not isinstance(self.capture_layers, str):
            _check_ids("capture_layers", self.capture_layers, -1)

    @property
    def num_rows(self) -> int:
        return 1

    @property
    def note(self) -> str | None:
        """What was converted, for the log."""
        inputs = self.eagle_aux_hidden_state_layer_ids
        if inputs is None:
            return None
        outputs = ", ".join("the embeddings" if i < 1 else str(i - 1) for i in inputs)
        return (
            f"{EAGLE_KEY} {list(inputs)} names layer inputs, which are the outputs of layers "
            f"{outputs}"
        )

    def resolve(self, drafts: DraftsAtHand) -> ExtractHiddenStatesConfig:
        """With the layers of a named method instead of its name; ConfigError if its drafts cannot
        be trained."""
        if not isinstance(self.capture_layers, str):
            return self
        return replace(self, capture_layers=drafts.training_layers(self.capture_layers))

    def captured_layers(self, num_layers: int) -> tuple[int, ...]:
        """`capture_layers` of a target with that many layers; ConfigError if they do not exist, or
        none are named."""
        layers, inputs = self.capture_layers, self.eagle_aux_hidden_state_layer_ids
        assert not isinstance(layers, str), "it was resolved"
        if layers is None:
            raise ConfigError(
                f"method {self.method} needs the layers whose states are to be written; give "
                f"capture_layers (their outputs, or the method that a draft is to be trained for) "
                f"or {EAGLE_KEY} (as vLLM, their inputs)"
            )
        if inputs is not None and max(inputs) > num_layers:
            raise ConfigError(
                f"{EAGLE_KEY} {list(inputs)} names the input of layer {max(inputs)}; the target "
                f"has {num_layers} layers, so 0 (the embeddings) to {num_layers} (the last "
                "layer's output) are possible"
            )
        if max(layers) > num_layers:
            raise ConfigError(
                f"capture_layers {list(layers)} names the output of layer {max(layers)}; the "
                f"target has {num_layers} layers, so -1 (the embeddings) to {num_layers} (the "
                "final norm) are possible"
            )
        return layers

    def over_engine(self, captured: tuple[int, ...]) -> ExtractHiddenStatesConfig:
        if not captured:
            raise ConfigError(
                f"the engine hands out no hidden states; rebuild it with "
                f"--speculative_decoding_mode {self.method} --capture_layers ..."
            )
        if self.capture_layers not in (None, captured):
            raise ConfigError(
                f"the states of layers {_shown(self.capture_layers)} (outputs) were asked for, "
                f"the engine was built for {list(captured)}; they are fixed at build: leave them "
                "out, or rebuild the engine"
            )
        return replace(self, capture_layers=captured)

    def ready(self, transfer: KvTransferConfig | None) -> ExtractHiddenStatesConfig:
        """With the output folder. Nothing is written yet.

        Raises:
            ConfigError: no folder is named, or it cannot be written to.
        """
        config = self if transfer is None else self.with_transfer(transfer)
        if config.shared_storage_path is None:
            raise ConfigError(
                f"method {config.method} needs shared_storage_path, the folder that the hidden "
                "states are written to; name it in speculative_config or in kv_transfer_config's "
                "kv_connector_extra_config"
            )
        check_storage(Path(config.shared_storage_path))
        if config.note:
            logger.info("%s", config.note)
        return config

    def with_transfer(self, transfer: KvTransferConfig) -> ExtractHiddenStatesConfig:
        """This config with the folder and the threads of vLLM's `kv_transfer_config`."""
        extra = transfer.kv_connector_extra_config
        path, threads = extra.shared_storage_path, extra.num_writer_threads
        if None not in (path, self.shared_storage_path) and path != self.shared_storage_path:
            raise ConfigError(
                f"shared_storage_path is {self.shared_storage_path!r} in speculative_config "
                f"and {path!r} in kv_transfer_config; give one of them"
            )
        return replace(
            self,
            shared_storage_path=path or self.shared_storage_path,
            num_writer_threads=self.num_writer_threads if threads is None else threads,
        )

    def _read_inputs(self) -> None:
        """Collect vLLM's ids from wherever they are given, and convert them."""
        inputs = self.eagle_aux_hidden_state_layer_ids
        if self.draft_model_config is not None:
            nested = self.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids
            if inputs not in (None, nested):
                raise ConfigError(
                    f"{EAGLE_KEY} is {list(inputs or ())} and, in draft_model_config, "
                    f"{list(nested)}; give one of them"
                )
            inputs = nested
            self._set("eagle_aux_hidden_state_layer_ids", inputs)
            self._set("draft_model_config", None)
        if inputs is None:
            return
        _check_ids(EAGLE_KEY, inputs, 0)
        outputs = tuple(layer - 1 for layer in inputs)
        if self.capture_layers not in (None, outputs):
            raise ConfigError(
                f"{EAGLE_KEY} {list(inputs)} names layer inputs (outputs {list(outputs)}), but "
                f"capture_layers is {_shown(self.capture_layers)}; give one of them"
            )
        self._set("capture_layers", outputs)


def _shown(layers: tuple[int, ...] | str | None) -> str:
    return repr(layers) if isinstance(layers, str) else str(list(layers or ()))


def _check_ids(key: str, ids: tuple[int, ...], low: int) -> None:
    if not ids:
        raise ConfigError(f"{key} is empty; name at least one layer")
    if min(ids) < low:
        raise ConfigError(f"{key} {list(ids)} has {min(ids)}; the lowest is {low}, the embeddings")
    if len(set(ids)) != len(ids):
        raise ConfigError(f"{key} {list(ids)} names a layer twice; name each state once")


def layers_from_a_command_line(options: Mapping[str, Any], parse: object) -> Mapping[str, Any]:
    """A method's name as ``capture_layers``, which a command line turns into a list of one word."""
    match options.get("capture_layers"):
        case [str() as method] if not method.lstrip("-").isdecimal():
            return {**options, "capture_layers": method}
    return options
