"""The tokenizers of GGUF files: pieces, ids, special tokens, templates, and what is refused."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from trtspec.builder.tokenizer import find_tokenizer, has_tokenizer, read_tokenizer, save_tokenizer
from trtspec.errors import CheckpointError
from trtspec.executor.text.token_decoder import TokenDecoder
from trtspec.llmapi.prompts import load_tokenizer

from .gguf_vocabularies import (
    BEGIN,
    CONTROL,
    END,
    LINES,
    MERGES,
    NORMAL,
    PIECES,
    TEXT,
    TOOL,
    byte_level,
    merged_characters,
    said,
    sentence_piece,
)
from .tiny_gguf import TinyGguf


def write(folder: Path, metadata: dict[str, Any]) -> Path:
    return TinyGguf(metadata).write(folder / "model.gguf")


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text)["input_ids"])


CUTS = {
    "gpt-2": "It|'s| 12345| x|\n|\n|1|.| Élan| | isn|'t|\n|\t|if|_|a| ==| B|2|:|\r\n   "
    "| 😀👍🏽| ...",
    "smollm": "It|'s| |1|2|3|4|5| x|\n\n|1|.| Élan| | isn|'t|\n|\t|if|_|a| ==| B|2|:|\r\n   "
    "| 😀👍🏽| ...",
    "default": "It|'|s| |123|45| x|\n|\n|1|.| Élan| | isn|'|t|\n|\t|if|_|a| |==| B|2|:|\r\n   "
    "| 😀👍🏽| |...",
    "llama-bpe": "It|'s| |123|45| x|\n\n|1|.| Élan| | isn|'t|\n|\tif|_a| ==| B|2|:\r\n|   "
    "| 😀👍🏽| ...",
    "glm4": "It|'s| |123|45| x|\n\n|1|.| Élan| | isn|'t|\n|\tif|_a| ==| B|2|:\r\n|   | 😀👍🏽| ...",
    "gpt-4o": "It's| |123|45| x|\n\n|1|.| Élan| | isn't|\n|\tif|_a| ==| B|2|:\r\n|   | 😀👍🏽| ...",
    "qwen2": "It|'s| |1|2|3|4|5| x|\n\n|1|.| Élan| | isn|'t|\n|\tif|_a| ==| B|2|:\r\n|   "
    "| 😀👍🏽| ...",
    "kimi-k2": "It's| |123|45| x|\n\n|1|.| Élan| | isn't|\n|\tif|_a| ==| B|2|:\r\n|   "
    "| 😀👍🏽| ...",
    "deepseek-coder": "It|'|s| |1|2|3|4|5| x|\n|\n|1|.| Élan| | isn|'|t|\n|\tif|_|a| ==| B|2|:|\r"
    "|\n|    😀👍🏽| ...",
    "deepseek-llm": "It|'|s| |12345| x|\n|\n|1|.| É|lan| | isn|'|t|\n|\tif|_|a| ==| B|2|:|\r"
    "|\n|    😀👍🏽| ...",
}
"""As llama.cpp cuts the text, whose ids were compared on thousands of texts under every name."""


@pytest.mark.parametrize("name", CUTS)
def test_pieces(name: str, tmp_path: Path) -> None:
    """Digits, endings, blank lines, indents, signs, emoji."""
    tokenizer = read_tokenizer(write(tmp_path, byte_level(pre=name))).backend_tokenizer
    cuts = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    assert [TEXT[begin:end] for begin, end in cuts] == CUTS[name].split("|")


MARKS = "e\u0301a हिंदी ที่ مَرْ aÉbC"
SPACES = "a\u3000b\u2003\u2003、d\u00a0\n\u2028.本\u3000x"
SCRIPTS = "漢字kana漢1 camelCase's Don'T x'\u017f 한글1234"
FURTHER_CUTS = {
    (
        "gpt-4o",
        MARKS,
    ): "e|\u0301a| ह|\u093f\u0902|द|\u0940| ท|\u0e35\u0e48| م|\u064eر|\u0652| aÉb|C",
    (
        "tekken",
        MARKS,
    ): "e|\u0301a| ह|\u093f\u0902|द|\u0940| ท|\u0e35\u0e48| م|\u064eر|\u0652| aÉb|C",
    (
        "kimi-k2",
        MARKS,
    ): "e|\u0301a| ह|\u093f\u0902|द|\u0940| ท|\u0e35\u0e48| م|\u064eر|\u0652| aÉbC",
    ("deepseek-coder", SPACES): "a|\u3000b|\u2003|\u2003|、|d|\u00a0|\n|\u2028.|本|\u3000x",
    ("deepseek-llm", SPACES): "a|\u3000b|\u2003|\u2003|、|d|\u00a0|\n|\u2028.|本|\u3000x",
    ("kimi-k2", SPACES): "a|\u3000b|\u2003|\u2003|、d|\u00a0\n|\u2028|.|本|\u3000x",
    ("gpt-4o", SCRIPTS): "漢字kana漢|1| camel|Case's| Don'T| x|'\u017f| 한글|123|4",
    ("tekken", SCRIPTS): "漢字kana漢|1| camel|Case|'s| Don|'T| x|'\u017f| 한글|1|2|3|4",
    ("kimi-k2", SCRIPTS): "漢字|kana|漢|1| camelCase's| Don'T| x|'\u017f| 한글|123|4",
    ("llama-bpe", SCRIPTS): "漢字kana漢|1| camelCase|'s| Don|'T| x|'\u017f| 한글|123|4",
}
"""Where llama.cpp departs from the models' own rules: a mark is no letter, letters outside ASCII
have no case, white space outside ASCII is no character of Asian scripts."""


@pytest.mark.parametrize(("name", "text"), FURTHER_CUTS)
def test_marks_spaces_and_scripts(name: str, text: str, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write(tmp_path, byte_level(pre=name))).backend_tokenizer
    cuts = [span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert [text[begin:end] for begin, end in cuts] == FURTHER_CUTS[name, text].split("|")


@settings(max_examples=60, deadline=None)
@given(text=st.text("thecaTsit 12\n\t.'é😀_", max_size=24))
@example(text=TEXT)
def test_byte_level_ids(byte_files: tuple[Any, Any, Path], text: str) -> None:
    """They are those of the tokenizer that the metadata were made of, and say the text again; so
    with the files that an engine folder gets."""
    expected, tokenizer, folder = byte_files
    ids = ids_of(tokenizer, text)
    assert ids == expected.encode(text).ids and tokenizer.decode(ids) == text
    saved = AutoTokenizer.from_pretrained(folder)
    assert ids_of(saved, text) == ids and saved.decode(ids) == text


@pytest.fixture(scope="module")
def byte_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """The tokenizer itself, as read from a GGUF file, and the folder with what was saved of it."""
    folder = tmp_path_factory.mktemp("bytes")
    metadata = byte_level()
    file = write(folder, metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split()) for pair in metadata["tokenizer.ggml.merges"]]
    expected = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    expected.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    (folder / "saved").mkdir()
    save_tokenizer(file, folder / "saved")
    return expected, read_tokenizer(file), folder / "saved"


def best_pairs(text: str, spaced: bool = True) -> list[int]:
    """SentencePiece's BPE as it is described: of all neighbours that make a token the one with the
    best score is joined, the leftmost of several; what is no token in the end is bytes."""
    ids = {piece: i + 259 for i, piece in enumerate(PIECES)}
    symbols = list((" " * spaced + text).replace(" ", "▁"))
    while True:
        pairs = [a + b for a, b in pairwise(symbols)]
        known = [(ids[pair], i) for i, pair in enumerate(pairs) if pair in ids]
        if not known:
            break
        _, at = min(known)
        symbols[at : at + 2] = [pairs[at]]
    spelled = [[ids[s]] if s in ids else [b + 3 for b in s.encode()] for s in symbols]
    return [token for tokens in spelled for token in tokens]


@settings(max_examples=150, deadline=None)
@given(text=st.text("thecas i'\n😀", min_size=1, max_size=20))
@example(text="the cat  chat that hat")
def test_sentence_piece_ids(pieces: tuple[Any, Any], text: str) -> None:
    tokenizer, unspaced = pieces
    assert ids_of(tokenizer, text) == [1, *best_pairs(text)]
    assert tokenizer.decode(ids_of(tokenizer, text)[1:]) == text
    assert ids_of(unspaced, text) == [*best_pairs(text, spaced=False), 2]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """One that puts a space before a text, and BOS; one that does not, but ends with EOS."""
    folder = tmp_path_factory.mktemp("pieces")
    spaced = read_tokenizer(write(folder, sentence_piece()))
    changes = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    return spaced, read_tokenizer(write(folder, sentence_piece(**changes)))


def merged(text: str) -> list[int]:
    """Of all neighbours that a merge joins the first of the list, the leftmost of several; never
    over the border of a run of line breaks."""
    ids = {piece: i + 259 for i, piece in enumerate(LINES)}
    ranks = {pair: rank for rank, pair in enumerate(MERGES)}
    found: list[int] = []
    for run in re.findall(r"\n+|[^\n]+", text.replace(" ", "▁")):
        symbols = list(run)
        while True:
            pairs = [f"{a} {b}" for a, b in pairwise(symbols)]
            known = [(ranks[pair], i) for i, pair in enumerate(pairs) if pair in ranks]
            if not known:
                break
            _, at = min(known)
            symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
        for symbol in symbols:
            found += [ids[symbol]] if symbol in ids else [b + 3 for b in symbol.encode()]
    return found


@settings(max_examples=100, deadline=None)
@given(text=st.text("thecas i'\n😀", min_size=1, max_size=20))
@example(text="the cat\n\n\n  that hat\n")
def test_merged_characters(lines: Any, text: str) -> None:
    assert ids_of(lines, text) == [1, *merged(text)]
    assert lines.decode(ids_of(lines, text)[1:]) == text


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return read_tokenizer(write(tmp_path_factory.mktemp("lines"), merged_characters()))


def test_a_space_follows_every_special_token(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write(tmp_path, sentence_piece()))
    assert ids_of(tokenizer, "cat</s>the") == [1, *best_pairs("cat"), 2, *best_pairs("the")]


@pytest.mark.parametrize(
    ("pre", "says", "begins"),
    [
        ("gpt-2", None, False),
        ("gpt-2", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("tekken", None, True),
        ("smaug-bpe", None, False),
    ],
)
def test_where_a_text_begins(pre: str, says: bool | None, begins: bool, tmp_path: Path) -> None:
    """With BOS, where the file says so or its kind of pre-tokenizer does."""
    tokenizer = read_tokenizer(write(tmp_path, byte_level(pre=pre, add_bos_token=says)))
    assert (ids_of(tokenizer, "the cat")[0] == 1) == begins
    plain = tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert 1 not in plain
    save_tokenizer(tmp_path, tmp_path)  # the folder with the file, as good as the file
    assert ids_of(AutoTokenizer.from_pretrained(tmp_path), "the") == ids_of(tokenizer, "the")


def test_whole_words_need_no_merges(tmp_path: Path) -> None:
    """Only under names for which llama.cpp takes it so."""
    words = byte_level()["tokenizer.ggml.tokens"]
    tokens, types = [*words[:-1], "hissed"], [CONTROL, CONTROL, *[NORMAL] * (len(words) - 2)]
    for pre, whole in (("llama-bpe", True), ("glm4", True), ("chatglm-bpe", False)):
        metadata = byte_level(pre=pre, tokens=tokens, token_type=types, add_bos_token=False)
        ids = ids_of(read_tokenizer(write(tmp_path, metadata)), "hissed")
        assert (ids == [len(tokens) - 1]) == whole


def test_special_tokens(tmp_path: Path) -> None:
    file = write(tmp_path, byte_level(padding_token_id=0))
    tokenizer = read_tokenizer(file)
    tool = len(byte_level()["tokenizer.ggml.tokens"]) - 1
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == (END, BEGIN, END)
    ids = ids_of(tokenizer, f"{BEGIN}a{TOOL}{END}")
    assert ids[0] == 1 and ids[-2:] == [tool, 0]
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"a{TOOL}"
    decoder = TokenDecoder(tokenizer)
    assert dict(decoder.special) == {0: END, 1: BEGIN} and decoder.is_byte_level
    assert len(tokenizer) == tool + 1


def test_chat_templates(tmp_path: Path) -> None:
    metadata = byte_level() | {"tokenizer.chat_template": "{{ messages[0].content }}!"}
    chat = [{"role": "user", "content": "hat"}]
    tokenizer = read_tokenizer(write(tmp_path, metadata))
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hat!"
    metadata["tokenizer.chat_template.tool_use"] = "tools"
    file = write(tmp_path, metadata)
    (tmp_path / "saved").mkdir()
    save_tokenizer(file, tmp_path / "saved")
    for named in (read_tokenizer(file), AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert named.apply_chat_template(chat, tokenize=False) == "hat!"
        other = named.apply_chat_template(chat, tokenize=False, chat_template="tool_use")
        assert other == "tools"
    assert read_tokenizer(write(tmp_path, byte_level())).chat_template is None


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_without_a_tokenizer(model: str | None, tmp_path: Path) -> None:
    file = write(tmp_path, said(model=model))
    assert not has_tokenizer(file) and find_tokenizer(tmp_path, skip_damaged=False) is None
    with pytest.raises(CheckpointError, match=rf"{file} holds no tokenizer .*tokenizer=<folder>"):
        load_tokenizer(file)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            byte_level(model="t5"),
            "model 't5' is not supported; .*: gpt2, llama, gemma4;",
        ),
        (byte_level(pre="spam"), r"pre-tokenizer 'spam' \(tokenizer\.ggml\.pre\) is not known; kn"),
        (byte_level(pre=None), "pre-tokenizer None .* is missing, as in files of before May 2024"),
        (byte_level(merges=None), r"do not say tokenizer\.ggml\.merges, a list of texts"),
        (byte_level(merges=["ab"]), "merges has 'ab'; a merge is two tokens and a space"),
        (byte_level(merges=["the spam"]), "does not make a tokenizer: .*`the` out of vocabulary"),
        (sentence_piece(token_type=[1]), r"token_type has 1 values for \d+ tokens"),
        (byte_level(tokens=[1, 2], token_type=None), "tokens has values that are no texts"),
        (byte_level(eos_token_id=301), r"eos_token_id is 301; the file has 301 tokens"),
        (
            byte_level(bos_token_id=None, add_bos_token=True),
            "is true, but there is no bos_token_id",
        ),
        (sentence_piece(scores=[0.0]), r"scores has 1 values for \d+ tokens"),
    ],
)
def test_refused_by_name(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = write(tmp_path, metadata)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_tokenizer(file)
    assert str(file) in str(refused.value) and has_tokenizer(file)
    assert find_tokenizer(file, skip_damaged=True) is None
    save_tokenizer(file, tmp_path)  # leaves it out
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("vocabulary", [byte_level, sentence_piece])
def test_no_token_is_no_token(vocabulary: Any, tmp_path: Path) -> None:
    """Some files write the largest number for parts that no token has."""
    none = dict.fromkeys(("bos_token_id", "padding_token_id", "unknown_token_id"), 0xFFFF_FFFF)
    tokenizer = read_tokenizer(write(tmp_path, vocabulary(**none)))
    assert tokenizer.bos_token is tokenizer.pad_token is None
    assert tokenizer.eos_token is not None
