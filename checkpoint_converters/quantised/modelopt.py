"""What a checkpoint says about quantised weights: one format is read, all others refused by name.

Read: NVIDIA ModelOpt's W8A16 (INT8_WEIGHT_ONLY): beside an int8 ``weight [N, K]`` lies
``weight_scale [N]``, and the weight is their product. Layers that the export left out, the head
among them, have plain weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.containers.safetensors_files import TensorHeader, read_json
from checkpoint_converters.hf_config import CONFIG, HfConfig
from trtspec.config.model import DTYPES
from trtspec.config.storage import SCALE_SUFFIX, WeightStorage
from trtspec.errors import CheckpointError

HF_QUANTIZATION = "hf_quant_config.json"
VALUES = "I8"
"""The dtype of quantised weights, as safetensors spells it."""
PER_OUTPUT = WeightStorage(bits=8)
"""Int8 weights with a scale for each output. ModelOpt names scales as internal names do."""

_ALGORITHM = "W8A16"
_SUPPORTED = f"unquantized weights in {', '.join(DTYPES)}; ModelOpt's {_ALGORITHM} (int8)"
_WHAT = ("quant_algo", "kv_cache_quant_algo")
_EMBEDDING = "embed.weight"


def read_storage(hf: HfConfig) -> WeightStorage | None:
    """`PER_OUTPUT` for weights in `_ALGORITHM`, None for plain ones.

    Raises:
        CheckpointError: config.json or hf_quant_config.json says another format.
    """
    said = [(CONFIG, "quantization_config", hf.get("quantization_config"))]
    file = hf.folder / HF_QUANTIZATION
    if file.is_file():
        fields = read_json(file).get("quantization")
        is_plain = isinstance(fields, dict) and not any(map(fields.get, _WHAT))
        said.append((HF_QUANTIZATION, "quantization", None if is_plain else fields))
    given = [entry for entry in said if entry[2] is not None]
    for entry in given:
        _require_int8(hf, *entry)
    return PER_OUTPUT if given else None


def _require_int8(hf: HfConfig, file: str, key: str, said: Any) -> None:
    fields = said if isinstance(said, dict) else {}
    algorithm, method = fields.get("quant_algo"), fields.get("quant_method", "modelopt")
    if method != "modelopt" or algorithm != _ALGORITHM:
        name = algorithm if method == "modelopt" and algorithm else fields.get("quant_method")
        name = name or repr(said)
        raise CheckpointError(
            f"{hf.folder / file}: {key} {name} is not supported; supported: {_SUPPORTED}"
        )
    cache = fields.get("kv_cache_quant_algo", fields.get("kv_cache_scheme"))
    if cache is not None:
        raise CheckpointError(
            f"{hf.folder / file}: {key} asks for a quantised K/V cache ({cache}), which is not "
            f"supported; supported: {_ALGORITHM} without one"
        )


def expected_scales(
    expected: Mapping[str, tuple[str, tuple[int, ...]]], headers: Mapping[str, TensorHeader]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The scales that the int8 weights among a checkpoint's tensors need, as `names.Expected`."""
    return {
        name + SCALE_SUFFIX: (target + SCALE_SUFFIX, shape[:1])
        for name, (target, shape) in expected.items()
        if name in headers and headers[name].dtype == VALUES
        # An embedding is looked up in floats.
        if len(shape) == 2 and target != _EMBEDDING
    }
