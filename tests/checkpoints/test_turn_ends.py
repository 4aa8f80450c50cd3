"""The ends of turns in GGUF files that are known by their texts, and control tokens of wrong types:
one token each in a prompt, and never shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from checkpoint_converters import read_config
from trtspec.builder.tokenizer import read_tokenizer, save_tokenizer

from .gguf_vocabularies import (
    CONTROL,
    NORMAL,
    TOOL,
    USER,
    byte_level,
    merged_characters,
    said,
    sentence_piece,
)
from .tiny_gguf import tiny

FAMILIES = {
    "ChatML": ["<|im_end|>", "<|endoftext|>"],
    "Llama 3": ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"],
    "Llama 4": ["<|eot|>", "<|eom|>"],
    "Gemma": ["<eos>", "<end_of_turn>"],
    "Gemma 4": ["<eos>", "<turn|>", "<|tool_response>"],
    "Phi": ["<|endoftext|>", "<|end|>"],
    "GLM": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "DeepSeek": ["<\uff5cend▁of▁sentence\uff5c>", "<|EOT|>"],
    "Kimi": ["[EOS]", "[EOT]", "<|im_end|>", "[PAD]"],
    "Cohere": ["<|END_OF_TURN_TOKEN|>"],
    "Mistral": ["</s>"],
    "Qwen Coder": ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"],
    "Granite": ["<|end_of_text|>", "<fim_pad>", "<reponame>"],
    "gpt-oss": ["<|return|>", "<|call|>"],
}


def with_tokens(
    kind: Callable[..., dict[str, Any]], texts: list[str], token_type: int, **changes: Any
) -> tuple[dict[str, Any], list[int]]:
    """The metadata with these tokens at the end, and their ids; it gives no token as an end."""
    metadata = kind(**{"eos_token_id": None, **changes})
    tokens = metadata["tokenizer.ggml.tokens"]
    types = [*metadata["tokenizer.ggml.token_type"], *[token_type] * len(texts)]
    added = said(tokens=[*tokens, *texts], token_type=types)
    if scores := metadata.get("tokenizer.ggml.scores"):
        added |= said(scores=[*scores, *[0.0] * len(texts)])
    return metadata | added, list(range(len(tokens), len(tokens) + len(texts)))


def write(folder: Path, metadata: dict[str, Any], **changes: Any) -> Path:
    model = tiny("F32", len(metadata["tokenizer.ggml.tokens"]))
    model.metadata |= metadata | said(**changes)
    return model.write(folder / "model.gguf")


def bytes_without_ends(**changes: Any) -> dict[str, Any]:
    """Its own token 0 is ``<|end|>``, which some families must not have."""
    metadata = byte_level(**changes)
    metadata["tokenizer.ggml.tokens"][0] = "<|zero|>"
    return metadata


def pieces_without_ends(**changes: Any) -> dict[str, Any]:
    metadata = sentence_piece(**changes)
    metadata["tokenizer.ggml.tokens"][2] = "<|two|>"
    return metadata


@pytest.mark.parametrize("token_type", [CONTROL, NORMAL, USER])
@pytest.mark.parametrize("family", FAMILIES)
def test_ends_by_their_texts(family: str, token_type: int, tmp_path: Path) -> None:
    texts = FAMILIES[family]
    for kind in (bytes_without_ends, pieces_without_ends):
        metadata, ids = with_tokens(kind, texts, token_type)
        file = write(tmp_path, metadata)
        assert sorted(read_config(file).eos_token_ids) == ids
        save_tokenizer(file, tmp_path)
        for tokenizer in (read_tokenizer(file), AutoTokenizer.from_pretrained(tmp_path)):
            for text, token in zip(texts, ids, strict=True):
                said_by = tokenizer(f"cat{text}", add_special_tokens=False)["input_ids"]
                assert said_by[-1] == token and token not in said_by[:-1]
                assert tokenizer.decode(said_by, skip_special_tokens=True) == "cat"


@pytest.mark.parametrize("token_type", [NORMAL, USER])
@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>", "<|fim_prefix|>", "<start_of_turn>", "<unk>", "<s>", "<mask>", "[gMASK]",
        "[CLS]", "[TOOL_CALLS]", "<start_of_image>", "<unused3>", "[unused12]", "<SPECIAL_20>",
    ],
)  # fmt: skip
def test_other_control_tokens(text: str, token_type: int, tmp_path: Path) -> None:
    """As the user's own tokens are, one token; but not shown, and no ends."""
    for kind in (bytes_without_ends, pieces_without_ends, merged_characters):
        if text in kind()["tokenizer.ggml.tokens"]:
            continue
        metadata, (token,) = with_tokens(kind, [text], token_type)
        file = write(tmp_path, metadata)
        assert token not in read_config(file).eos_token_ids
        tokenizer = read_tokenizer(file)
        ids = tokenizer(f"{text}cat{text}", add_special_tokens=False)["input_ids"]
        assert ids[0] == ids[-1] == token
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "cat"


def test_an_end_among_characters_with_merges(tmp_path: Path) -> None:
    metadata, ids = with_tokens(merged_characters, ["<turn|>", "<eos>"], USER)
    assert read_config(write(tmp_path, metadata)).eos_token_ids == (2, *ids)


def test_those_that_the_file_gives_come_first(tmp_path: Path) -> None:
    texts = ["<|endoftext|>", "<|im_end|>", "<a>", "<b>", "<c>", "<d>"]
    metadata, ids = with_tokens(bytes_without_ends, texts, CONTROL)
    given = {"eos": 1, "eot": 2, "fim_pad": 3, "fim_rep": 4, "fim_sep": 5}
    changes = {f"{name}_token_id": ids[i] for name, i in given.items()}
    file = write(tmp_path, metadata, **changes)
    assert read_config(file).eos_token_ids == (*ids[1:], ids[0])


def test_words_are_no_ends(tmp_path: Path) -> None:
    """Merges make them of letters, as those of HTML: they are shown, and not cut out of a text."""
    merges = ["< /", "s >", "</ s>"]
    metadata, ids = with_tokens(bytes_without_ends, ["</", "s>", "</s>", "end"], NORMAL)
    file = write(tmp_path, metadata, merges=[*merges, *metadata["tokenizer.ggml.merges"]])
    assert read_config(file).eos_token_ids == ()
    tokenizer = read_tokenizer(file)
    assert ids[2] not in tokenizer("</s>")["input_ids"]
    assert tokenizer.decode([ids[2]], skip_special_tokens=True) == "</s>"
    metadata, ids = with_tokens(pieces_without_ends, ["</", "s>", "</s>", "end"], NORMAL)
    assert read_config(write(tmp_path, metadata)).eos_token_ids == ()
    assert read_tokenizer(file).decode([ids[2]], skip_special_tokens=True) == "</s>"
    tokenizer = read_tokenizer(write(tmp_path, metadata, eos_token_id=ids[2]))
    assert tokenizer("cat</s>")["input_ids"][-1] == ids[2] == tokenizer.eos_token_id


@pytest.mark.parametrize("token_type", [NORMAL, USER])
@pytest.mark.parametrize(
    ("texts", "merges"),
    [
        (["<mask>", "<m", "ask>", "as", "k>"], ["< m", "a s", "k >", "as k>", "<m ask>"]),
        (["<s>", "<eos>"], []),
        (["<s>", "<|tool_response>"], []),
        (["[IMG]"], []),
        (["<filename>"], []),
        (["<unused>"], []),
    ],
)
def test_words_that_control_tokens_are_like(
    texts: list[str], merges: list[str], token_type: int, tmp_path: Path
) -> None:
    """Made by merges, HTML, or what a text may well have: shown."""
    metadata, ids = with_tokens(bytes_without_ends, texts, token_type)
    own = [*metadata["tokenizer.ggml.merges"], *merges]
    tokenizer = read_tokenizer(write(tmp_path, metadata, merges=own))
    assert tokenizer.decode(ids[:1], skip_special_tokens=True) == texts[0]


def test_a_word_that_the_file_gives_for_padding(tmp_path: Path) -> None:
    """It stays in the text; a control token of a wrong type does not."""
    metadata, (token,) = with_tokens(bytes_without_ends, ["<padding>"], NORMAL)
    word = metadata["tokenizer.ggml.tokens"].index("!")
    tokenizer = read_tokenizer(write(tmp_path, metadata, padding_token_id=word))
    ids = tokenizer("a!")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a!" and tokenizer.pad_token is None
    tokenizer = read_tokenizer(write(tmp_path, metadata, padding_token_id=token))
    assert tokenizer("a<padding>")["input_ids"][-1] == token == tokenizer.pad_token_id


@pytest.mark.parametrize(
    ("texts", "token_type", "ends"),
    [
        (["<|end|>", "<|return|>", "<|call|>"], CONTROL, [1, 2]),
        (["<|end|>", "<|flush|>", "<|calls|>"], CONTROL, [1, 2]),
        (["<|end|>", "<|return|>"], CONTROL, [0, 1]),
        (["</s>", "<eos>", "<end_of_turn>"], USER, [1, 2]),
        (["</s>", "<|tool_response>"], CONTROL, [1]),
    ],
)
def test_what_others_are_beside(
    texts: list[str], token_type: int, ends: list[int], tmp_path: Path
) -> None:
    metadata, ids = with_tokens(bytes_without_ends, texts, token_type)
    file = write(tmp_path, metadata)
    assert read_config(file).eos_token_ids == tuple(ids[i] for i in ends)
    shown = token_type == USER  # HTML is
    assert read_tokenizer(file).decode([ids[0]], skip_special_tokens=True) == texts[0] * shown


def test_a_user_s_token_is_shown(tmp_path: Path) -> None:
    metadata, ids = with_tokens(bytes_without_ends, ["<think>", "</think>"], USER)
    file = write(tmp_path, metadata)
    tool = metadata["tokenizer.ggml.tokens"].index(TOOL)
    said_by = read_tokenizer(file).decode([tool, *ids], skip_special_tokens=True)
    assert said_by == f"{TOOL}<think></think>" and read_config(file).eos_token_ids == ()


def test_an_end_that_the_model_cannot_say(tmp_path: Path) -> None:
    metadata, (token,) = with_tokens(bytes_without_ends, ["<|im_end|>"], CONTROL)
    model = tiny("F32", token)  # it has that many rows
    model.metadata |= metadata
    assert read_config(model.write(tmp_path / "model.gguf")).eos_token_ids == ()


@pytest.mark.parametrize("damage", [{"tokens": None}, {"token_type": [1]}, {"tokens": [1, 2]}])
def test_a_damaged_vocabulary_says_no_more(damage: dict[str, Any], tmp_path: Path) -> None:
    model = tiny()
    model.metadata |= byte_level(**damage)
    assert read_config(model.write(tmp_path / "model.gguf")).eos_token_ids == (0,)
