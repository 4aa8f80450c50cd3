"""SentencePiece in GGUF files: ties of scores, saving what they need, white space behind tokens."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.builder.tokenizer import has_tokenizer, read_tokenizer, save_tokenizer, tokenizer_files
from trtspec.executor.text.token_decoder import TokenDecoder

from .gguf_vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, USER, said
from .tiny_gguf import TinyGguf

LETTERS = ("▁", "a", "b", "n")
SPACES = tuple("▁" * n for n in (2, 3, 4, 5, 6, 7, 9))


def vocabulary(words: dict[str, float] | list[str], **changes: Any) -> dict[str, Any]:
    """Pieces and their scores, none for a list, behind 256 bytes and three tokens."""
    scores = {} if isinstance(words, list) else {"scores": [0.0] * 259 + list(words.values())}
    values = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **scores,
    }
    return said(**values | changes)


def leftmost_best(text: str, words: dict[str, float]) -> list[int]:
    """Of all neighbours that make a token the one with the best score is joined, the leftmost of
    several, be its parts tokens or not; what is no token in the end is bytes."""
    ids = {word: i + 259 for i, word in enumerate(words)}
    symbols = list(f" {text}".replace(" ", "▁"))
    while True:
        pairs = [(-words[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in words]
        if not pairs:
            break
        _, at = min(pairs)
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
    spelled = [[ids[s]] if s in ids else [b + 3 for b in s.encode()] for s in symbols]
    return [token for tokens in spelled for token in tokens]


def write(folder: Path, metadata: dict[str, Any]) -> Path:
    return TinyGguf(metadata).write(folder / "model.gguf")


@st.composite
def tied_words(draw: st.DrawFn) -> dict[str, float]:
    """Words of words, with few scores."""
    words = list(LETTERS[draw(st.integers(0, 1)) :])
    for _ in range(draw(st.integers(2, 12))):
        words.append(draw(st.sampled_from(words)) + draw(st.sampled_from(words)))
    return {word: -float(draw(st.integers(0, 2))) for word in dict.fromkeys(words)}


@settings(max_examples=60, deadline=None)
@given(words=tied_words(), texts=st.lists(st.text("aabn x", min_size=1, max_size=12), min_size=8))
def test_ties(
    tmp_path_factory: pytest.TempPathFactory, words: dict[str, float], texts: list[str]
) -> None:
    tokenizer = read_tokenizer(write(tmp_path_factory.mktemp("ties"), vocabulary(words)))
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert ids == leftmost_best(text, words), text
        assert "▁" not in words or tokenizer.decode(ids) == text


@pytest.mark.parametrize("scores", ["equal", "zero", "absent"])
def test_one_score(scores: str, tmp_path: Path) -> None:
    words = dict.fromkeys([*LETTERS, "na", "an", "ana", "nan", "▁b", "ba", "▁▁", ""], 0.0)
    if scores == "equal":
        words = dict.fromkeys(words, -3.5)
    said_words = list(words) if scores == "absent" else words
    tokenizer = read_tokenizer(write(tmp_path, vocabulary(said_words)))
    for text in ("banana", "nananab", "anna  bana", "b a\nn", "aab   nab</s>nab"):
        expected = [leftmost_best(part, words) for part in text.split("</s>")]
        joined = [*expected[0], *(token for part in expected[1:] for token in (2, *part))]
        assert tokenizer(text)["input_ids"] == joined


def test_spaces_of_one_score(tmp_path: Path) -> None:
    """As in the vocabularies of Llama 2 and Mistral: saved as files of transformers still."""
    words = {word: -float(i) for i, word in enumerate(("▁a", "an", "▁an", *LETTERS))}
    words |= dict.fromkeys(SPACES, -1e9)
    tokenizer = read_tokenizer(write(tmp_path, vocabulary(words)))
    (tmp_path / "saved").mkdir()
    save_tokenizer(tmp_path / "model.gguf", tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    saved = read_tokenizer(tmp_path / "saved")
    for count in range(30):
        text = f"b{' ' * count}an{' ' * (30 - count)}n{' ' * (count // 3)}"
        ids = leftmost_best(text, words)
        assert tokenizer(text)["input_ids"] == ids == saved(text)["input_ids"]


def test_saved_where_ties_need_it(tmp_path: Path) -> None:
    """An engine folder, and a folder with the weights anew, get the same ids."""
    words = dict.fromkeys([*LETTERS, "na", "an", "ana", "nan", "▁b"], 0.0)
    metadata = vocabulary(words) | {"general.name": "Phi-3", "tokenizer.chat_template": "hat"}
    file = write(tmp_path, metadata | {"llama.block_count": 1})
    text = "banana </s> nanan"
    ids = read_tokenizer(file)(text)["input_ids"]
    for name in ("first", "second", "third"):
        folder = tmp_path / name
        folder.mkdir()
        save_tokenizer(file, folder)
        (folder / "model.safetensors").touch()
        assert has_tokenizer(folder) and tokenizer_files(folder) == [folder / "tokenizer.gguf"]
        saved = read_tokenizer(folder)
        assert saved(text)["input_ids"] == ids and saved.chat_template == "hat"
        assert saved.decode(ids) == read_tokenizer(tmp_path / "model.gguf").decode(ids)
        assert dict(TokenDecoder(saved).special) == {0: "<unk>", 1: "<s>", 2: "</s>"}
        file = folder


@pytest.mark.parametrize(
    ("name", "architecture", "strips"),
    [
        ("Phi-3 mini", "llama", True),
        ("my PHI3", "llama", True),
        (None, "phi3", True),
        ("Phi 4", "llama", False),
        (None, "llama", False),
    ],
)
def test_white_space_behind_special_tokens(
    name: str | None, architecture: str, strips: bool, tmp_path: Path
) -> None:
    """Phi-3's own tokens take it along, those of its vocabulary's model do not."""
    tokens = ["<|user|>", "<|end|>", "<|endoftext|>", "<tool>"]
    words = {word: -float(i) for i, word in enumerate((*LETTERS, "▁a"))}
    metadata = vocabulary(words, eos_token_id=260 + len(words))
    metadata["tokenizer.ggml.tokens"] += tokens
    metadata["tokenizer.ggml.token_type"] += [CONTROL, CONTROL, CONTROL, USER]
    metadata["tokenizer.ggml.scores"] += [0.0] * 4
    if name is not None:
        metadata["general.name"] = name
    file = TinyGguf(metadata, architecture=architecture).write(tmp_path / "model.gguf")
    (tmp_path / "saved").mkdir()
    save_tokenizer(file, tmp_path / "saved")
    for tokenizer in (read_tokenizer(file), read_tokenizer(tmp_path / "saved")):
        for token in ("<|user|>", "<|end|>", "<tool>", "</s>", "<s>", "<|endoftext|>", "<unk>"):
            stripped = strips and token not in ("<s>", "<|endoftext|>", "<unk>")
            plain = tokenizer(f"b {token}a", add_special_tokens=False)["input_ids"]
            spaced = tokenizer(f"b {token} \n\t\r\n a", add_special_tokens=False)["input_ids"]
            assert (spaced == plain) == stripped, token


def test_no_warning_of_its_own_rule(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tokenizer(write(tmp_path, vocabulary({"a": 0.0, "▁": -1.0, "▁a": -2.0})), tmp_path)
    (tmp_path / "model.gguf").unlink()
    with caplog.at_level(logging.WARNING):
        read_tokenizer(tmp_path)
    assert not caplog.records
