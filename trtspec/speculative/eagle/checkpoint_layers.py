"""Which hidden states of the target an EAGLE-3 draft reads, in one convention.

Inside trtspec, layer i is the *output* of decoder layer i (0-based), and -1 the embeddings.
Checkpoints have two conventions: ModelOpt's ``eagle_config`` names outputs, as here; the top-level
key of the same name (vLLM, speculators) names *inputs*, which are one more. A wrong reading loads
without complaint and costs acceptance, so every conversion is reported.
"""

from __future__ import annotations

from typing import Any

from checkpoint_converters.capture import Capture
from checkpoint_converters.hf_config import HfConfig
from trtspec.speculative.eagle.checkpoint_kind import eagle_config

KEY = "eagle_aux_hidden_state_layer_ids"


def read_capture(hf: HfConfig, num_layers: int, states: int) -> Capture:
    """The hidden states that an EAGLE-3 draft of a target with ``num_layers`` layers reads.

    ``states``: their number according to the width of ``fc``; only the defaults use it. Raises
    CheckpointError for ids that are not a list of distinct layers of the target, for two lists that
    disagree, and if nothing names layers and the target has too few for the defaults.
    """
    nested = eagle_config(hf).get(KEY)
    outputs = _from_outputs(hf, nested, num_layers) if nested else None
    top = hf.get(KEY)
    inputs = _from_inputs(hf, top, num_layers, KEY) if top else None
    if outputs and inputs and outputs.layers != inputs.layers:
        raise hf.refuse(
            f"{KEY} {top} names layer inputs (outputs {list(inputs.layers)}), but {KEY} in "
            f"eagle_config names outputs {nested}; remove the wrong one"
        )
    return outputs or inputs or _defaults(hf, num_layers, states)


def _from_outputs(hf: HfConfig, given: Any, num_layers: int) -> Capture:
    ids = _ids(hf, given, f"eagle_config.{KEY}")
    usual_inputs = sorted({2, num_layers // 2, num_layers - 3})
    # Some trainers write inputs here. Two cases cannot mean anything else: an id past the last
    # layer, and EAGLE's usual three spelt by input.
    if max(ids) == num_layers or (len(ids) == 3 and sorted(ids) == usual_inputs):
        why = "past the last layer" if max(ids) == num_layers else "EAGLE's usual ones by input"
        capture = _from_inputs(hf, given, num_layers, f"eagle_config.{KEY}")
        note = f"eagle_config names layers {_list(ids)}, {why}: read as layer inputs"
        return Capture(capture.layers, "eagle_config: inputs", (note, *capture.notes))
    if not 0 <= min(ids) <= max(ids) < num_layers:
        raise hf.refuse(
            f"eagle_config.{KEY} {list(ids)} names layers that the target does not have; it has "
            f"layers 0 to {num_layers - 1}"
        )
    return _in_order(ids, "eagle_config: outputs", ())


def _from_inputs(hf: HfConfig, given: Any, num_layers: int, key: str) -> Capture:
    ids = _ids(hf, given, key)
    if not 0 <= min(ids) <= max(ids) <= num_layers:
        raise hf.refuse(
            f"{key} {list(ids)} names inputs of layers that the target does not have; with "
            f"{num_layers} layers, 0 to {num_layers} are possible"
        )
    layers = tuple(layer - 1 for layer in ids)
    note = f"config.json names layer inputs {_list(ids)}, which are outputs {_list(layers)}"
    return _in_order(layers, "config.json: inputs, less 1", (note,))


def _defaults(hf: HfConfig, num_layers: int, states: int) -> Capture:
    usual = (1, num_layers // 2 - 1, num_layers - 4)
    layers = tuple(sorted(set(usual)))
    if num_layers <= 5 or (len(layers) < 3 and len(layers) != states):
        raise hf.refuse(
            f"{KEY} is not given, and of a target of {num_layers} layers EAGLE's usual three "
            f"(outputs 1, L/2 - 1 and L - 4: {_list(usual)}) are not {states} different ones; "
            "name the layers in config.json"
        )
    merged = () if len(layers) == 3 else (f"equal layers of {_list(usual)} are read once",)
    return Capture(layers, "EAGLE's usual ones; config.json names none", merged)


def _in_order(layers: tuple[int, ...], source: str, notes: tuple[str, ...]) -> Capture:
    """Trainers and engines concatenate the hidden states in the order in which the target computes
    them, so a list in another order (ModelOpt once wrote a set) means the same."""
    ascending = tuple(sorted(layers))
    if ascending != layers:
        notes = (*notes, f"layers {_list(layers)} are concatenated as they run: {_list(ascending)}")
    return Capture(ascending, source, notes)


def _ids(hf: HfConfig, given: Any, key: str) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(layer) is int for layer in given):
        raise hf.refuse(f"{key} is {given!r}, not a list of layers")
    if len(set(given)) != len(given):
        raise hf.refuse(f"{key} {given} names a layer twice")
    return tuple(given)


def _list(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
