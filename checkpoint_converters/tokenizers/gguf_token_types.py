"""Token types in a GGUF file, with mistyped control tokens corrected, and the tokens that end a
text."""

from __future__ import annotations

import re
from typing import Any

from checkpoint_converters.containers.gguf_file import GgufFile
from checkpoint_converters.tokenizers.turn_ends import ends_among, has_html
from trtspec.errors import CheckpointError

# llama.cpp's types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

TOKENS = "tokenizer.ggml.tokens"
MERGES = "tokenizer.ggml.merges"

_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NAMED = (*_ENDS, "bos", "padding", "mask", "fim_pre", "fim_suf", "fim_mid")

_MARKED = re.compile(r"<\|\S+\|>|<\uff5c\S+\uff5c>")
_SPARE = re.compile(r"<(unused|reserved_|extra_id_|SPECIAL_|special_)\d+>|\[unused\d+\]")
"""Tokens that vocabularies reserve for later."""
_UNMARKED = frozenset({
    "<start_of_turn>", "<|turn>", "<bos>", "<pad>", "[INST]", "[/INST]",
    "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>",
    "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>",
    "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>",
})  # fmt: skip
"""Further control tokens, which begin something and lack the usual marks."""
_UNTYPED = frozenset({
    "<unk>", "<UNK>", "[UNK]", "<mask>", "<MASK_TOKEN>", "[MASK]", "<cls>", "<CLS>", "[CLS]",
    "<sep>", "<SEP>", "[SEP]", "<BOS_TOKEN>", "<EOS_TOKEN>", "<EOP_TOKEN>", "[BOS]",
    "[gMASK]", "[sMASK]", "<sop>", "<eop>",  # GLM
    "<2mass>", "[@BOS@]", "<start_of_image>", "<end_of_image>", "<image_soft_token>",  # Gemma
    "<start_of_audio>", "<end_of_audio>", "<audio_soft_token>",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",  # Mistral
    "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[CALL_ID]",
    "[IMG_BREAK]", "[IMG_END]", "[BEGIN_AUDIO]",
})  # fmt: skip
"""Control tokens in the models' own tokenizers whose type in the file llama.cpp leaves alone.
Excludes tokens that may be words, such as ``<filename>`` and ``[IMG]``, and tokens that users look
for, such as ``<think>``."""


def token_types(file: GgufFile) -> list[int]:
    """The type of each token. Many files type control tokens as normal or user-defined; here they
    are control tokens if their text says so or the file gives them a role such as EOS. Letters keep
    their type, such as the ``!`` that some files use for padding. So do words that merges form from
    letters and that have no role, such as ``</s>`` where it is HTML.

    Raises:
        CheckpointError: there are no tokens, or the number of types differs.
    """
    tokens = file.texts(TOKENS)
    types = as_many(file, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    named = {file.token_id(name) for name in _NAMED}
    vocabulary = dict.fromkeys(tokens)
    known = _UNMARKED.union(ends_among(vocabulary))
    untyped = _UNTYPED if has_html(vocabulary) else _UNTYPED.union(("<s>",))
    looks_so = {
        i: token
        for i, token in enumerate(tokens)
        if types[i] not in (CONTROL, UNKNOWN, BYTE)
        and (
            i in named
            or token in known
            or token in untyped
            or _MARKED.fullmatch(token)
            or _SPARE.fullmatch(token)
        )
    }
    unsure = {
        token
        for i, token in looks_so.items()
        if i not in named and (types[i] != USER_DEFINED or token in untyped)
    }
    words = _made_by_merges(file, tokens, unsure) if unsure else set()
    wrong = {i for i, token in looks_so.items() if token not in words and len(token) > 1}
    return [CONTROL if i in wrong else kind for i, kind in enumerate(types)]


def end_tokens(file: GgufFile, vocab_size: int) -> list[int]:
    """The tokens that end a text: those that the file names, the end of the whole text first, and
    control tokens known for it. Only the former if the vocabulary cannot be read."""
    named = [token for name in _ENDS if (token := file.token_id(name)) is not None]
    try:
        types, tokens = token_types(file), file.texts(TOKENS)
    except CheckpointError:  # none, or damaged, for which the tokenizer is refused
        return list(dict.fromkeys(named))
    controls = {tokens[i]: i for i, kind in enumerate(types[:vocab_size]) if kind == CONTROL}
    return list(dict.fromkeys([*named, *(controls[text] for text in ends_among(controls))]))


def as_many(file: GgufFile, name: str, count: int) -> list[Any]:
    """A list with one value for each of ``count`` tokens, or an empty one if the file has none.

    Raises:
        CheckpointError: it is not a list, or its length differs.
    """
    key = f"tokenizer.ggml.{name}"
    values = file.get(key, [])
    if not isinstance(values, list) or (values and len(values) != count):
        size = len(values) if isinstance(values, list) else repr(values)
        raise file.refuse(f"{key} has {size} values for {count} tokens")
    return values


def _made_by_merges(file: GgufFile, tokens: list[str], texts: set[str]) -> set[str]:
    """Those of the texts that two tokens form, by a merge or, where scores replace merges, by both
    being tokens."""
    if MERGES in file.metadata:
        return texts.intersection(pair.replace(" ", "") for pair in file.texts(MERGES))
    pieces = set(tokens)
    return {
        text
        for text in texts
        if any(text[:at] in pieces and text[at:] in pieces for at in range(1, len(text)))
    }
