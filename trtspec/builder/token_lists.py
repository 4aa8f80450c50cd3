"""Token lists for cut heads: found as files, or made from a number or from texts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from checkpoint_converters import content_of
from checkpoint_converters.content_hash import hash_files
from trtspec.builder.digest_memory import DigestMemory
from trtspec.builder.locate import cache_root
from trtspec.builder.token_choice import DraftCost, choose
from trtspec.builder.tokenizer import has_tokenizer, read_tokenizer, tokenizer_fingerprint
from trtspec.config.draft import DraftConfig
from trtspec.config.draft_vocabulary import REMEDY, VocabularyAsked
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.models.layer_facts import ExpertSet, Read
from trtspec.speculative.registry import draft_kinds

_LINES = 64
"""Lines of a text that are counted together, for cross-validation between parts."""


def token_list(
    asked: VocabularyAsked,
    target: ModelConfig,
    folder: Path | None,
    tokenizer: Path | None,
    draft: DraftConfig,
    depth: int,
) -> tuple[Path | None, str]:
    """The file of the tokens that a draft's head is cut to, and a line about the choice; None: all
    tokens are best. ``folder``: the target's checkpoint, if available. ``tokenizer``: the target's
    tokenizer, if elsewhere. ``draft``: the network before cutting, which drafts ``depth`` tokens.

    Raises:
        ConfigError: a number does not fit, a text cannot be read, or there is nothing to count.
    """
    if asked.file is not None:
        return asked.file, ""
    counted = asked.size is None or asked.text is not None
    texts = _texts(asked, folder, tokenizer) if counted else []
    vocab = _vocab_size(target, draft)
    found = choose(
        (ids[ids < vocab] for ids in texts),
        vocab,
        [end for end in target.eos_token_ids if end < vocab],
        asked.size,
        _cost(target, draft, depth),
        "vocabulary",
    )
    if found.ids is None:
        return None, "the draft proposes any token: so drafts are fastest"
    said = "those of the lowest ids"
    if counted:
        source = "what the target writes" if asked.text is None else str(asked.text)
        said = f"the most frequent of {source}, {found.coverage:.2%} of its tokens"
    return _stored(found.ids), f"the draft's {len(found.ids)} tokens: {said}, and the ends of texts"


def written_path(folder: Path, tokenizer: Path | None = None) -> Path:
    """Where the texts are kept that a target wrote to be counted, with its own tokenizer or
    another: a JSON list of texts."""
    known = hash_files(content_of(folder), DigestMemory.of_user().digest)
    if tokenizer is not None:
        known += f"-{tokenizer_fingerprint(tokenizer)}"
    return _folder() / f"written-{known}.json"


def keep_written(
    folder: Path, texts: Iterable[Sequence[int]], tokenizer: Path | None = None
) -> None:
    """Store what the target in ``folder`` wrote. OSError: it cannot be written."""
    _write(written_path(folder, tokenizer), [list(text) for text in texts])


def _texts(asked: VocabularyAsked, folder: Path | None, tokenizer: Path | None) -> Iterator[Tensor]:
    """The texts to count, ``[T] i64`` each."""
    assert folder is not None, "an engine that is built is never cut again"
    if asked.text is not None:
        yield from _of_file(asked.text, tokenizer or folder)
        return
    path = written_path(folder, tokenizer)
    if not path.is_file():
        raise ConfigError(
            f"vocabulary='auto' counts what the target writes, and {folder} has not written yet: "
            "build once with trtspec-build, which lets it write for some minutes and keeps that; "
            "or give vocabulary_text, a file of plain text, or a number"
        )
    yield from (torch.tensor(text, dtype=torch.int64) for text in json.loads(path.read_text()))


def _of_file(text: Path, folder: Path) -> Iterator[Tensor]:
    if not has_tokenizer(folder):
        raise ConfigError(f"{folder} has no tokenizer to read {text} by; {REMEDY}")
    try:
        lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary_text {text} cannot be read: {error}") from error
    if not any(line.strip() for line in lines):
        raise ConfigError(f"vocabulary_text {text} holds no words; {REMEDY}")
    tokenizer = read_tokenizer(folder)
    for first in range(0, len(lines), _LINES):
        part = "".join(lines[first : first + _LINES])
        ids = tokenizer(part, add_special_tokens=False)["input_ids"]
        yield torch.tensor(ids, dtype=torch.int64)


def _vocab_size(target: ModelConfig, draft: DraftConfig) -> int:
    """Tokens that both have; families pad their embeddings to different sizes."""
    own = draft.vocab_size if isinstance(draft, ModelConfig) else target.vocab_size
    return min(own, target.vocab_size)


def _cost(target: ModelConfig, draft: DraftConfig, depth: int) -> DraftCost:
    """Costs in matrix elements, whatever their bits."""
    reads = draft_kinds()[draft.kind].matrices(draft)
    body = _elements(each for each in reads if isinstance(each, ExpertSet) or not _is_head(each))
    whole = _elements(draft_kinds()[target.kind].matrices(target))
    decoder = draft.decoder
    return DraftCost(whole, body, (decoder or target).hidden_size, depth)


def _is_head(read: Read) -> bool:
    """Whether it is a draft's head, which has no name if it is the target's."""
    return not isinstance(read, ExpertSet) and (read.is_head or not read.name)


def _elements(reads: Iterable[Read]) -> float:
    total = 0.0
    for read in reads:
        if isinstance(read, ExpertSet):
            total += read.top_k * _elements(read.matrices)
        else:
            total += read.outputs * read.inputs
    return total


def _stored(ids: Tensor) -> Path:
    """The file of these ids in the user's cache folder, named by its content."""
    listed = ids.tolist()
    known = blake2b(json.dumps(listed).encode(), digest_size=8).hexdigest()
    path = _folder() / f"tokens-{len(listed)}-{known}.json"
    if not path.is_file():
        try:
            _write(path, listed)
        except OSError as error:
            raise ConfigError(f"the draft's tokens cannot be kept in {path}: {error}") from error
    return path


def _folder() -> Path:
    return cache_root() / "vocabularies"


def _write(path: Path, values: object) -> None:
    """Write atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(values, file)
    os.replace(file.name, path)
