"""Which scheme of quantised weights a checkpoint has, according to its configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkpoint_converters.containers.safetensors_files import read_json
from checkpoint_converters.hf_config import CONFIG, HfConfig
from checkpoint_converters.quantised import awq, compressed_tensors, fp8, gptq, modelopt, mxfp4
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.scheme import Folds
from trtspec.errors import CheckpointError

HF_QUANTIZATION = "hf_quant_config.json"
_ALONE = {"quantize_config.json": gptq.METHOD, "quant_config.json": awq.METHOD}
"""Separate files that AutoGPTQ and AutoAWQ write if config.json says nothing; each holds one
object."""
_BITS = ("bits", "w_bit")
QUANTIZATION_FILES = (HF_QUANTIZATION, *_ALONE)
"""Files beside config.json that describe quantised weights."""
_CONFIG_KEY, _FILE_KEY = "quantization_config", "quantization"
_CACHES = ("kv_cache_quant_algo", "kv_cache_scheme")
_WHAT = ("quant_algo", *_CACHES)
_GROUP_SIZE = "group_size"

_READERS: Mapping[str, Callable[[Said], Folds]] = {
    modelopt.METHOD: modelopt.read_modelopt,
    compressed_tensors.METHOD: compressed_tensors.read_compressed_tensors,
    awq.METHOD: awq.read_awq,
    gptq.METHOD: gptq.read_gptq,
    fp8.METHOD: fp8.read_fp8_scheme,
    mxfp4.METHOD: mxfp4.read_mxfp4,
}
"""Readers by quant_method."""


def read_scheme(hf: HfConfig) -> Folds | None:
    """The scheme in config.json, hf_quant_config.json or, if neither has one, in a separate file;
    None for weights that are not quantised.

    Raises:
        CheckpointError: an unsupported scheme or setting, or a quantised K/V cache.
    """
    given: list[tuple[str, str, Any]] = [(CONFIG, _CONFIG_KEY, hf.get(_CONFIG_KEY))]
    file = hf.folder / HF_QUANTIZATION
    if file.is_file():
        fields = read_json(file).get(_FILE_KEY)
        is_plain = isinstance(fields, dict) and not any(map(fields.get, _WHAT))
        given.append((HF_QUANTIZATION, _FILE_KEY, None if is_plain else fields))
        own = given[0][2]
        if isinstance(own, dict) and isinstance(fields, dict) and _GROUP_SIZE in fields:
            # config.json says less of the same: how many features share a scale it may leave out.
            given[0] = (CONFIG, _CONFIG_KEY, {_GROUP_SIZE: fields[_GROUP_SIZE], **own})
    given = [entry for entry in given if entry[2] is not None]
    schemes = [_scheme(hf, *entry) for entry in given or _said_alone(hf)]
    return schemes[0] if schemes else None


def _said_alone(hf: HfConfig) -> list[tuple[str, str, Any]]:
    """For each existing file of `_ALONE`: its name, its key for messages, and its contents. A file
    that gives no bits belongs to another program."""
    found = []
    for name, method in _ALONE.items():
        fields = read_json(hf.folder / name) if (hf.folder / name).is_file() else {}
        if any(fields.get(bits) is not None for bits in _BITS):
            said = {key: value for key, value in fields.items() if value is not None}
            found.append((name, "quantization", {"quant_method": method, **said}))
    return found


def _scheme(hf: HfConfig, name: str, key: str, values: Any) -> Folds:
    file = hf.folder / name
    fields = values if isinstance(values, dict) else {}
    default = modelopt.METHOD if "quant_algo" in fields or name == HF_QUANTIZATION else None
    method = fields.get("quant_method", default)
    if not isinstance(method, str) or method not in _READERS:
        raise CheckpointError(
            f"{file}: {key} {method or repr(values)} is not supported; supported: weights that are "
            f"not quantised, and quant_method {', '.join(_READERS)}"
        )
    said = Said(file, key, fields)
    for cache in _CACHES:
        if said.get(cache) is not None:
            raise said.refuse(
                f"asks for a quantised K/V cache ({said.get(cache)}), which is not supported; "
                f"remove {cache} to have K and V in floats"
            )
    return _READERS[method](said)
