"""The two spellings of a language model's tensor names, read as one.

A causal language model saves its decoder below ``model.`` and its head as ``lm_head.weight``. A
decoder saved alone (``LlamaModel.save_pretrained``) has the same names without ``model.``. Rules:

* If no name is below ``model.``, names that begin with a part of the decoder (`PARTS`) are read as
  if prefixed with ``model.``. All others stay as they are.
* Both spellings in one checkpoint are refused, because nothing says which of them count.

A composite model stores its language model below ``model.language_model.`` or ``language_model.``,
which is read as if it were saved alone.

Missing and unused tensors are refused as usual. A head tied to the embedding may also be stored in
its place; see `checkpoint_converters.load_checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from checkpoint_converters.containers.gguf_file import find_gguf, open_gguf
from checkpoint_converters.containers.safetensors_files import TensorHeader, read_headers
from trtspec.errors import CheckpointError

BASE = "model."
_COMPOSITE = {
    "model.language_model.": BASE,
    "language_model.model.": BASE,
    "language_model.lm_head.": "lm_head.",
}
PARTS = ("embed_tokens.", "layers.", "norm.", "rotary_emb.", "mtp_layers.")


def read_model_headers(folder: Path) -> dict[str, TensorHeader]:
    """`read_headers` for a language model, with the names of a causal one; for a GGUF file, or a
    folder with one, its own names.

    Raises CheckpointError as `read_headers` and `open_gguf`, and for names in both spellings.
    """
    gguf = find_gguf(folder)
    if gguf is not None:
        return dict(open_gguf(gguf).tensors)
    headers = {_alone(name): header for name, header in read_headers(folder).items()}
    bare = [name for name in headers if name.startswith(PARTS)]
    if not bare:
        return headers
    below = [name for name in headers if name.startswith(BASE)]
    if below:
        raise CheckpointError(
            f"{folder} names tensors of its decoder with {BASE!r} before them ({len(below)}, first "
            f"{min(below)}) and without ({len(bare)}, first {min(bare)}); which of them count "
            "cannot be known: give all of them one spelling, or remove those that do not count"
        )
    return {
        BASE + name if name.startswith(PARTS) else name: header for name, header in headers.items()
    }


def _alone(name: str) -> str:
    for theirs, ours in _COMPOSITE.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def as_causal(module: str) -> str:
    """A module's name as in a causal language model, given either spelling."""
    alone = _alone(f"{module}.").removesuffix(".")
    return BASE + alone if alone.startswith(PARTS) else alone


def base_note(headers: Mapping[str, TensorHeader]) -> str:
    """A note for messages about `read_model_headers` if names have a `BASE` that the file lacks;
    otherwise empty."""
    is_base = any(name == BASE + header.name for name, header in headers.items())
    return f" (a base model's save: {BASE!r} is put before its names)" if is_base else ""
