"""A class of transformers whose rule is not that of the tokenizer.json beside it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from trtspec.builder.tokenizer import read_tokenizer

SPACE = "▁"


def spaced(prefix: str) -> Tokenizer:
    """As in Llama 2, and a ``prefix`` before a text: that of the file or of the class."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), SPACE, "a", f"{SPACE}a"]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [(SPACE, "a")]))
    made.model.fuse_unk = made.model.byte_fallback = True
    made.model.unk_token = "<unk>"
    if prefix == "class":
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        made.normalizer = normalizers.Sequence(steps)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    made.add_special_tokens([AddedToken(word, normalized=False) for word in words[:3]])
    return made


def byte_level(pattern: str | None = None, whole_words: bool = False) -> Tokenizer:
    """GPT-2's rule, or cut by a pattern; ``whole_words``: one that no merge makes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate([*alphabet, "hat"])}
    made = Tokenizer(models.BPE(vocabulary, [], ignore_merges=whole_words))
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), "removed")
        as_bytes = pre_tokenizers.Sequence([cut, as_bytes])
    made.pre_tokenizer = as_bytes
    made.decoder = decoders.ByteLevel()
    return made


def write(folder: Path, tokenizer: Tokenizer, name: str, **config: Any) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps({"tokenizer_class": name, **config})
    (folder / "tokenizer_config.json").write_text(text)


@pytest.mark.parametrize(
    ("tokenizer", "name", "text"),
    [
        (spaced("file"), "LlamaTokenizer", " a"),
        (byte_level("x"), "GPT2Tokenizer", "It's 12345 x\n\n1. isn't\n"),
        (byte_level(whole_words=True), "GPT2Tokenizer", "hat"),
    ],
)
def test_warned_with_both(
    tokenizer: Tokenizer,
    name: str,
    text: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(tmp_path, tokenizer, name)
    with caplog.at_level(logging.WARNING, logger="trtspec"):
        read = read_tokenizer(tmp_path)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "trtspec"]
    assert f"as {name}, which has another rule than tokenizer.json: {text!r} is [" in said
    ids = read.encode(text, add_special_tokens=False)
    own = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids != own
    write(tmp_path, tokenizer, "PreTrainedTokenizerFast")  # the remedy that it names
    caplog.clear()
    assert read_tokenizer(tmp_path).encode(text, add_special_tokens=False) == own
    assert not caplog.records


@pytest.mark.parametrize(
    ("tokenizer", "name"), [(spaced("class"), "LlamaTokenizer"), (byte_level(), "GPT2Tokenizer")]
)
def test_not_warned_of_one_rule(
    tokenizer: Tokenizer, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, tokenizer, name)
    with caplog.at_level(logging.WARNING):
        read_tokenizer(tmp_path)
    assert not [record for record in caplog.records if record.name == "trtspec"]
