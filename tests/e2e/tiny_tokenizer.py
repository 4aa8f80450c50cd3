"""Tokenizers made on the spot: words for checks of pairs, bytes for text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
# What the merges of the byte tokenizer are learnt from.
_CORPUS = [
    "the cat sat on the mat and that is that",
    "a rat ate the hat, then it sat; cat: mat?",
] * 4


def save_words(folder: Path, words: Sequence[str], *added: str) -> None:
    """A tokenizer whose i-th token is the i-th word, and behind them those that are ``added``."""
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(added))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def save_bytes(folder: Path, vocab_size: int, chat: bool = True, end: str = END) -> None:
    """A byte-level BPE like that of real models: any text, several bytes or letters a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
