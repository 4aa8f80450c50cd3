"""What kinds of tokens a GGUF file has, control tokens of a wrong type among them, and which of
them end a text."""

from __future__ import annotations

import re
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.tokenizers.turn_ends import ends_among
from trtspec.errors import CheckpointError

# llama.cpp's types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

TOKENS = "tokenizer.ggml.tokens"
MERGES = "tokenizer.ggml.merges"

_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NAMED = (*_ENDS, "bos", "padding", "mask", "fim_pre", "fim_suf", "fim_mid")

_MARKED = re.compile(r"<\|\S+\|>|<\uff5c\S+\uff5c>")
_UNMARKED = frozenset({
    "<start_of_turn>", "<|turn>", "<bos>", "<pad>", "[INST]", "[/INST]",
    "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>",
    "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>",
    "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>",
})  # fmt: skip
"""Further control tokens, which begin something and have no marks of control tokens."""


def token_types(file: GgufFile) -> list[int]:
    """The type of each token. Many files say of control tokens that they are words or the user's
    own: here they are control tokens by their texts, and if the file gives them a part such as EOS.
    Letters stay what they are, such as the ``!`` that some files give for padding; so do words that
    merges make of letters and that have no part, such as ``</s>`` where it is HTML.

    Raises:
        CheckpointError: there are no tokens, or not as many types as tokens.
    """
    tokens = file.texts(TOKENS)
    types = as_many(file, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    named = {file.token_id(name) for name in _NAMED}
    known = _UNMARKED.union(ends_among(dict.fromkeys(tokens)))
    looks_so = {
        i: token
        for i, token in enumerate(tokens)
        if types[i] not in (CONTROL, UNKNOWN, BYTE)
        and (token in known or i in named or _MARKED.fullmatch(token))
    }
    unsure = {t for i, t in looks_so.items() if types[i] != USER_DEFINED and i not in named}
    words = _made_by_merges(file, tokens, unsure) if unsure else set()
    wrong = {i for i, token in looks_so.items() if token not in words and len(token) > 1}
    return [CONTROL if i in wrong else kind for i, kind in enumerate(types)]


def end_tokens(file: GgufFile, vocab_size: int) -> list[int]:
    """The tokens that end a text: those that the file gives as one, the end of the whole first, and
    control tokens that are known for it. Of a vocabulary that cannot be read, the former alone."""
    named = [token for name in _ENDS if (token := file.token_id(name)) is not None]
    try:
        types, tokens = token_types(file), file.texts(TOKENS)
    except CheckpointError:  # none, or damaged, for which the tokenizer is refused
        return list(dict.fromkeys(named))
    controls = {tokens[i]: i for i, kind in enumerate(types[:vocab_size]) if kind == CONTROL}
    return list(dict.fromkeys([*named, *(controls[text] for text in ends_among(controls))]))


def as_many(file: GgufFile, name: str, count: int) -> list[Any]:
    """A list with a value for each of ``count`` tokens, or an empty one where the file has none.

    Raises:
        CheckpointError: it is no list, or has more or fewer values.
    """
    key = f"tokenizer.ggml.{name}"
    values = file.get(key, [])
    if not isinstance(values, list) or (values and len(values) != count):
        size = len(values) if isinstance(values, list) else repr(values)
        raise file.refuse(f"{key} has {size} values for {count} tokens")
    return values


def _made_by_merges(file: GgufFile, tokens: list[str], texts: set[str]) -> set[str]:
    """Those of the texts that two tokens make, by a merge or, where scores stand for merges, by
    being tokens."""
    if MERGES in file.metadata:
        return texts.intersection(pair.replace(" ", "") for pair in file.texts(MERGES))
    pieces = set(tokens)
    return {
        text
        for text in texts
        if any(text[:at] in pieces and text[at:] in pieces for at in range(1, len(text)))
    }
