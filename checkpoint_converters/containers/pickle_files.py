"""pytorch_model.bin: pickled tensors, unpickled without running any code from the file."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpoint_converters.containers.gguf_file import find_gguf, open_gguf
from checkpoint_converters.containers.safetensors_files import (
    INDEX,
    SINGLE,
    TensorHeader,
    read_headers,
    read_json,
)
from checkpoint_converters.containers.tensor_sources import SPELLING, HeldTensor
from trtspec.errors import CheckpointError

PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"


def read_any_headers(folder: Path) -> dict[str, TensorHeader]:
    """`read_headers`; for a folder without safetensors, the tensors of its GGUF file, of
    ``pytorch_model.bin`` or of the files in its index.

    Pickled tensors are memory-mapped; pages are loaded when a tensor is used. Raises
    CheckpointError as `read_headers`, and for a pickle that holds more than named tensors.
    """
    gguf = find_gguf(folder)
    if gguf is not None:
        return dict(open_gguf(gguf).tensors)
    if any((folder / name).is_file() for name in (SINGLE, INDEX)):
        return read_headers(folder)
    if (folder / PICKLE).is_file():
        return read_pickle_headers(folder / PICKLE)
    if (folder / PICKLE_INDEX).is_file():
        return _read_parts(folder)
    return read_headers(folder)


def load_pickle(file: Path) -> Any:
    """What ``torch.save`` wrote, if it consists of tensors, numbers, strings and containers.

    Raises CheckpointError for a missing or damaged file, and for one that refers to any other class
    or function. Unpickling that could run code, so it is refused by name.
    """
    try:
        # Files from before torch 1.6 are no archives and cannot be mapped.
        mapped = zipfile.is_zipfile(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist") from None
    except pickle.UnpicklingError as error:
        asked = re.search(r"GLOBAL (\S+)", str(error))
        what = asked.group(1) if asked else "something other than tensors"
        raise CheckpointError(
            f"{file} is damaged, or needs {what} to be unpickled, and that could run code; only "
            "pickles of plain tensors are read: convert it to safetensors where you trust it"
        ) from error
    except Exception as error:  # the reader's errors share no base but this one
        raise CheckpointError(f"{file} cannot be read as a torch file: {error}") from error


def read_pickle_headers(file: Path) -> dict[str, TensorHeader]:
    """The tensors of one pickled file; CheckpointError if it holds anything else."""
    content = load_pickle(file)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds a {type(content).__name__}, not named tensors")
    headers: dict[str, TensorHeader] = {}
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{file}: {name!r} is a {type(tensor).__name__}, not a tensor; a checkpoint is a "
                "dict of named tensors"
            )
        dtype = SPELLING.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        headers[name] = HeldTensor(name, file, dtype, tuple(tensor.shape), tensor)
    return headers


def _read_parts(folder: Path) -> dict[str, TensorHeader]:
    index = folder / PICKLE_INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    headers: dict[str, TensorHeader] = {}
    for part in sorted({str(part) for part in weight_map.values()}):
        headers |= read_pickle_headers(folder / part)
    unfound = sorted(set(weight_map) - set(headers))
    if unfound:
        raise CheckpointError(
            f"{index} names {len(unfound)} tensors that its files lack: {', '.join(unfound)}"
        )
    return headers
