"""Tokenizers as the metadata of GGUF files spell them."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
END, BEGIN, TOOL = "<|end|>", "<|begin|>", "<tool>"
TEXT = "It's 12345 x\n\n1. Élan  isn't\n\tif_a == B2:\r\n    😀👍🏽 ..."
CORPUS = [TEXT, "the cat sat on the mat and that is that\n\n", "a rat ate the hat;  12 cats"] * 3


def said(**values: Any) -> dict[str, Any]:
    """Metadata by what follows ``tokenizer.ggml.``; None: not there."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def byte_level(**changes: Any) -> dict[str, Any]:
    """A byte-level BPE with some merges, learnt here: 0 ends, 1 begins, the last one is TOOL."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END, BEGIN],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    learnt.train_from_iterator(CORPUS, trainer)
    ids = learnt.get_vocab()
    merges = json.loads(learnt.model.__getstate__())["merges"]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*sorted(ids, key=ids.__getitem__), TOOL],
        "token_type": [CONTROL, CONTROL, *[NORMAL] * (len(ids) - 2), USER],
        "merges": [" ".join(pair) for pair in merges],
        "eos_token_id": 0,
        "bos_token_id": 1,
    }
    return said(**values | changes)


PIECES = ["he", "the", "▁the", "▁c", "at", "▁cat", "▁▁", "▁", *"abcdehist'", "ch", "cha", "hat"]


def sentence_piece(**changes: Any) -> dict[str, Any]:
    """Some pieces with scores that fall from one to the next, and all bytes."""
    values = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES],
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES)],
        "scores": [0.0] * 259 + [-float(i) for i in range(len(PIECES))],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return said(**values | changes)


LINES = [*PIECES, "\n", "\n\n"]
MERGES = ["h e", "t he", "▁ the", "▁ c", "a t", "▁c at", "▁ ▁", "c h", "ch a", "h at", "\n \n"]


def merged_characters(**changes: Any) -> dict[str, Any]:
    """Some pieces with merges of their own, and all bytes."""
    changed = {"model": "gemma4", "merges": MERGES, "scores": None}
    values = sentence_piece(**changed)
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], "\n", "\n\n"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], NORMAL, NORMAL]
    return values | said(**changes)
