"""MTP modules in a target's own checkpoint, read as a draft."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_converters.auxiliary_weights import AuxiliaryWeights
from checkpoint_converters.base_names import read_model_headers
from checkpoint_converters.containers.safetensors_files import (
    LazyTensors,
    TensorHeader,
)
from checkpoint_converters.containers.tensor_sources import Shifted, SwappedHalves
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.draft_names import EMBEDDING, FC, GATE, HEAD
from checkpoint_converters.draft_vocabulary import cut_head
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.registry import family_of
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import HF_DECODER
from checkpoint_converters.names import match
from checkpoint_converters.quantised.folded import fold
from checkpoint_converters.stacked import split_stacked
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.eagle import expected
from trtspec.speculative.mtp.families import (
    LAYER,
    MODULES,
    Places,
    PredictionModules,
    module_tensors,
)
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig
from trtspec.speculative.mtp.options import MtpDecodingConfig
from trtspec.speculative.mtp.shape import MtpConfig

_NOT_RUN = (
    (r"linear_attn\.", "linear attention"),
    (r"self_attn\.\w*sink\w*", "attention sinks"),
)


def unrun_parts(layer_parts: Iterable[str]) -> list[str]:
    """Unsupported parts of a module's decoder layer, each with a tensor that shows it."""
    names = sorted(layer_parts)
    found = []
    for pattern, what in _NOT_RUN:
        name = next((name for name in names if re.match(pattern, name)), None)
        if name is not None:
            found.append(f"{what}, tensor {name}")
    return found


_SUPPORTED = "supported: grouped-query or latent attention, SwiGLU or experts"
_IGNORED = (r".*\.rotary_emb\.inv_freq",)

Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True)
class _Module:
    """One module; ``tensors`` by internal names."""

    config: MtpConfig
    tensors: dict[str, TensorHeader]
    ignored: tuple[str, ...]


def read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    """Open the folder of a target, or of a model with its sizes, and resolve its MTP modules; no
    weight is read yet. Differences between families end here: the projection reads the embedding
    first, norms multiply by their weight, and every module has all its tensors, even if a family's
    modules share some.

    ``token_map``: a file of the target's ids that the head is cut to, as for any draft. Tensor
    names of a module begin with ``modules.{i}.``.

    Raises:
        CheckpointError: there are no modules, or unsupported blocks; modules differ; tensors are
            missing, unused or do not fit the target; found and expected values are named.
    """
    path, hf = folder.path, folder.hf
    everything = fold(hf, read_model_headers(path))
    family = _family(hf, everything, target)
    count = family.count(everything, target.num_layers)
    modules = [_read_module(hf, family, i, count, everything, target) for i in range(count)]
    root = family.at(0, target.num_layers).root
    notes = [
        f"draft: MTP ({family.name}, tensors {root}*) of the target's checkpoint; reads the "
        "output of the target's final norm"
    ]
    said = _said(hf)
    if any(number != count for number in said.values()):
        says = ", ".join(f"{key} {number}" for key, number in said.items())
        notes.append(
            f"config.json says {says}, but the checkpoint has tensors of {count} MTP modules"
        )
    config = first = modules[0].config
    tensors: dict[str, TensorHeader] = {}
    files = {header.file for module in modules for header in module.tensors.values()}
    cut: tuple[str, ...] = ()
    for i, module in enumerate(modules):
        if module.config != first:
            raise hf.refuse(
                f"MTP module {i} is not like module 0: {module.config}, not {first}; the modules "
                "of a checkpoint must be of one shape"
            )
        if token_map is not None:
            config, cut = cut_head(first, module.tensors, token_map, target)
            files.add(token_map)
        tensors |= {f"modules.{i}.{name}": header for name, header in module.tensors.items()}
    ignored = sorted({name for module in modules for name in module.ignored})
    return DraftCheckpoint(
        path,
        MtpDecodingConfig.method,
        MtpModulesConfig(config, count),
        LazyTensors(tensors),
        tuple(ignored),
        (*notes, *cut),
        tuple(sorted(files)),
    )


def _read_module(
    hf: HfConfig,
    family: PredictionModules,
    index: int,
    count: int,
    everything: Headers,
    target: ModelConfig,
) -> _Module:
    """Module ``index`` of ``count``, with what it shares with the others."""
    places = family.at(index, target.num_layers)
    others = [family.at(i, target.num_layers).parts[LAYER] for i in range(count) if i != index]
    headers = {
        name: header
        for name, header in everything.items()
        if name.startswith(places.root) and not name.startswith(tuple(others))
    }
    config = _config(hf, family, places, headers, target)
    of_target = family_of(target.architecture)
    headers = _experts_apart(of_target, places, config.decoder, headers)
    shapes = expected(config, of_target.names)
    wanted = {places.name(common): found for common, found in shapes.items()}
    what = f"{hf.folder} does not fit MTP module {index} of {count} ({family.name})"
    resolved = match(wanted, headers, _IGNORED, what)
    tensors = dict(resolved.tensors)
    if family.state_first:
        tensors["fc.weight"] = SwappedHalves.of(tensors["fc.weight"])
    if family.unit_offset:
        norms = [name for name in tensors if name.endswith("norm.weight")]
        tensors |= {name: Shifted.of(tensors[name], 1) for name in norms}
    return _Module(config, tensors, tuple(resolved.ignored))


def _experts_apart(
    family: Family, places: Places, decoder: ModelConfig, headers: Headers
) -> dict[str, TensorHeader]:
    """The tensors with each expert's own ones instead of stacked ones, which the target's family
    names as in its own layers."""
    module, layer = places.parts[LAYER], "model.layers.0."

    def renamed(found: Headers, old: str, new: str) -> dict[str, TensorHeader]:
        named = {name: new + name.removeprefix(old) for name in found if name.startswith(old)}
        return {named.get(name, name): header for name, header in found.items()}

    as_layer = renamed(headers, module, layer)
    return renamed(split_stacked(family.stacked, family.names, decoder, as_layer), layer, module)


def _family(hf: HfConfig, headers: Headers, target: ModelConfig) -> PredictionModules:
    kind = hf.get("model_type")
    for family in MODULES:
        fits = family.model_types is None or kind in family.model_types
        if fits and family.count(headers, target.num_layers):
            return family
    said = [f"{key} is {number}" for key, number in _said(hf).items()]
    places = [family.at(0, target.num_layers) for family in MODULES if family.model_types is None]
    roots = ", ".join(f"{place.parts[FC]}" for place in places)
    raise hf.refuse(
        f"the checkpoint has no MTP modules: none of the tensors {roots} is there"
        + (f", although {' and '.join(said)}" if said else "")
        + "; give the folder of a target that was published with them, or another method"
    )


def _said(hf: HfConfig) -> dict[str, Any]:
    """How many modules config.json states, which must be a valid number."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    return {key: hf.get(key) for key in keys if hf.get(key) is not None}


def _config(
    hf: HfConfig, family: PredictionModules, places: Places, headers: Headers, target: ModelConfig
) -> MtpConfig:
    """From the target's config and the module's tensors."""

    def has(common: str) -> bool:
        return places.name(common) in headers

    parts = unrun_parts(places.layer_parts(headers))
    if parts:
        raise hf.refuse(
            f"the MTP module ({family.name}, {places.root}*) has {' and '.join(parts)}, which this "
            f"version does not run; {_SUPPORTED}"
        )
    try:
        layer = _layer(_like(target, family.unit_offset), places, headers)
        decoder = dataclasses.replace(target, layers=Layers.repeat(layer, 1), head=HeadSpec())
        return MtpConfig(
            version=1,
            decoder=decoder,
            target_hidden_size=target.hidden_size,
            capture_layers=(target.num_layers,),
            draft_vocab_size=target.vocab_size,
            norm_output=family.feeds_normed,
            input_norms=True,
            own_embedding=has(EMBEDDING),
            own_head=has(HEAD),
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error


def _like(target: ModelConfig, unit_offset: bool) -> LayerSpec:
    """The target's last layer without a recurrent state; with ``unit_offset`` its norms multiply by
    their stored value, which is one more than the module's weights."""
    *_, last = (
        spec for spec in target.layers if all(b.kind == "paged" for b in spec.mixer.buffers)
    )
    if not unit_offset:
        return last
    return dataclasses.replace(last, norm=dataclasses.replace(last.norm, one_plus=False))


def _layer(last: LayerSpec, places: Places, headers: Headers) -> LayerSpec:
    """A module's layer: that one, adjusted to the module's tensors."""

    def has(common: str) -> bool:
        return places.name(LAYER + common) in headers

    layer, gate = last, headers.get(places.name(GATE))
    mixer = layer.mixer.as_stored(lambda name: has(HF_DECODER.in_layer(name)), layer.norm)
    layer = dataclasses.replace(layer, mixer=mixer)
    if gate is not None and layer.ffn is not None:
        dense = DenseSpec(gate.shape[0], layer.ffn.activation, bias=has("mlp.gate_proj.bias"))
        layer = dataclasses.replace(layer, ffn=dense)
    return layer


IN_TARGET = AuxiliaryWeights(module_tensors)
MTP_READER = DraftReader("MTP modules", lambda folder: False, lambda folder: None, read)
"""Modules are in a target's folder, which looks like a language model's."""
