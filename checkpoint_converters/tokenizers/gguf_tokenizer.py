"""The tokenizer in a GGUF file's metadata -> a transformers tokenizer, with special tokens and chat
template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from checkpoint_converters.containers.gguf_file import GgufFile, token_key
from checkpoint_converters.containers.gguf_header import copy_metadata
from checkpoint_converters.tokenizers.gguf_token_types import (
    BYTE,
    CONTROL,
    MERGES,
    TOKENS,
    UNKNOWN,
    USER_DEFINED,
    as_many,
    token_types,
)
from checkpoint_converters.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from checkpoint_converters.tokenizers.score_merges import LeftmostMerges, merges_by_score
from trtspec.errors import CheckpointError

MODEL = "tokenizer.ggml.model"
TEMPLATE = "tokenizer.chat_template"
TOKENIZER_GGUF = "tokenizer.gguf"
"""A file with the tokenizer of a GGUF file that transformers' formats cannot express."""

_SPACE = "\u2581"  # stands for a space in vocabularies of text
_PHI_3 = ("phi-3", "phi3")  # in general.name, regardless of case


def has_vocabulary(file: GgufFile) -> bool:
    """Whether a file holds a tokenizer; models without one say ``none`` or nothing."""
    return file.get(MODEL, "none") not in ("none", "no_vocab")


def gguf_tokenizer(file: GgufFile) -> Any:
    """The tokenizer of a file that `has_vocabulary`. Its ids are llama.cpp's with special tokens
    parsed.

    Raises:
        CheckpointError: an unknown kind or pre-tokenizer, or inconsistent metadata; the value is
            named.
    """
    vocabulary = _Vocabulary(file)
    kind = file.text(MODEL)
    if kind not in _MAKERS:
        raise file.refuse(
            f"{MODEL} {kind!r} is not supported; supported: {', '.join(_MAKERS)}; give "
            "tokenizer=<folder> with the model's own tokenizer files"
        )
    try:
        made = _MAKERS[kind](vocabulary)
    except CheckpointError:
        raise
    except Exception as error:  # that of the tokenizers library has no class of its own
        raise file.refuse(f"its vocabulary does not make a tokenizer: {error}") from error
    tokenizer = made.tokenizer
    tokenizer.add_special_tokens(vocabulary.added(CONTROL, UNKNOWN))
    tokenizer.add_tokens(vocabulary.added(USER_DEFINED))
    _frame(tokenizer, vocabulary, made.adds_bos)
    fast: Any = _GgufTokenizer(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **vocabulary.named_tokens(),
    )
    fast.chat_template = _chat_template(file)
    if made.merges is not None:  # only now: it cannot be copied, as the class does with its object
        fast.merge_here(made.merges, file.path)
    return fast


class _GgufTokenizer(PreTrainedTokenizerFast):
    """Saves itself in transformers' files or, if these cannot express its merges, as
    `TOKENIZER_GGUF`."""

    _merged_of: Path | None = None

    def merge_here(self, merges: LeftmostMerges, source: Path) -> None:
        """Join pairs by these from now on; ``source`` is the file they come from."""
        self._merged_of = source
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(merges)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> tuple[str, ...]:
        if self._merged_of is None:
            saved: tuple[str, ...] = super().save_pretrained(save_directory, *args, **kwargs)
            return saved
        target = Path(save_directory) / TOKENIZER_GGUF
        copy_metadata(
            self._merged_of, target, ("general.architecture", "general.name", "tokenizer.")
        )
        return (str(target),)


@dataclass(frozen=True)
class _Made:
    """adds_bos: whether texts begin with BOS if the file does not say. merges: replaces the
    tokenizer's own model for joining pairs."""

    tokenizer: Tokenizer
    adds_bos: bool
    merges: LeftmostMerges | None = None


@dataclass(frozen=True)
class _Vocabulary:
    """What the file says about tokens, checked on access."""

    file: GgufFile

    @cached_property
    def tokens(self) -> list[str]:
        return self.file.texts(TOKENS)

    @cached_property
    def types(self) -> list[int]:
        return token_types(self.file)

    @cached_property
    def ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    @cached_property
    def scores(self) -> list[float]:
        return as_many(self.file, "scores", len(self.tokens)) or [0.0] * len(self.tokens)

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        pairs = self.file.texts(MERGES)
        split = [tuple(pair.split(" ")) for pair in pairs]
        wrong = [pair for pair, parts in zip(pairs, split, strict=True) if len(parts) != 2]
        if wrong:
            raise self.file.refuse(f"{MERGES} has {wrong[0]!r}; a merge is two tokens and a space")
        return [(parts[0], parts[1]) for parts in split]

    def token(self, name: str) -> str | None:
        """The token named by ``{name}_token_id``, or None."""
        token = self.file.token_id(name)
        if token is not None and not 0 <= token < len(self.tokens):
            raise self.file.refuse(
                f"{token_key(name)} is {token}; the file has {len(self.tokens)} tokens"
            )
        return None if token is None else self.tokens[token]

    def named_tokens(self) -> dict[str, str]:
        """The tokens that transformers has names for, as its arguments. Words are left out, because
        it would cut them out of every text and never show them."""
        names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
        found = {f"{ours}_token": self.token(theirs) for theirs, ours in names.items()}
        return {
            name: token
            for name, token in found.items()
            if token is not None and self.types[self.ids[token]] in (CONTROL, UNKNOWN)
        }

    def added(self, *types: int) -> list[AddedToken]:
        """Tokens of these types, which are cut out of a text first."""
        special = USER_DEFINED not in types
        return [
            AddedToken(token, normalized=False, special=special, rstrip=self._strips(token))
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in types and token
        ]

    def _strips(self, token: str) -> bool:
        """Whether white space after a token is dropped with it. Files do not say. Among supported
        models Phi-3's tokens do so, except those of its vocabulary's own model."""
        name = self.file.text("general.name", "").lower()
        named = any(spelling in name for spelling in _PHI_3)
        is_phi_3 = named or (
            self.file.get("general.architecture") == "phi3" and self.file.get(MODEL) == "llama"
        )
        return is_phi_3 and token not in ("<unk>", "<s>", "<|endoftext|>")


def _byte_level(vocabulary: _Vocabulary) -> _Made:
    """BPE over bytes, as in GPT-2 and later."""
    file, key = vocabulary.file, "tokenizer.ggml.pre"
    name = file.text(key, None)
    if name not in PRE_TOKENIZERS:
        said = "is missing, as in files of before May 2024" if name is None else "is not known"
        raise file.refuse(
            f"the pre-tokenizer {name!r} ({key}) {said}; known: {', '.join(PRE_TOKENIZERS)}; "
            "convert the model anew, or give tokenizer=<folder> with its own tokenizer files"
        )
    rule = PRE_TOKENIZERS[name]
    model = models.BPE(vocabulary.ids, vocabulary.merges, ignore_merges=rule.whole_words)
    tokenizer = Tokenizer(model)
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return _Made(tokenizer, rule.adds_bos)


def _sentence_piece(vocabulary: _Vocabulary) -> _Made:
    """BPE over characters by token scores."""
    scores = _scores_of_words(vocabulary)
    merges = merges_by_score(scores, vocabulary.ids)
    tokenizer = _of_characters(vocabulary, merges or [], spaced=True)
    if merges is not None:
        return _Made(tokenizer, True)
    tokenizer.model.ignore_merges = True
    return _Made(tokenizer, True, LeftmostMerges(scores))


def _gemma4(vocabulary: _Vocabulary) -> _Made:
    """BPE over characters by merges, line by line."""
    tokenizer = _of_characters(vocabulary, vocabulary.merges, spaced=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), "isolated")
    return _Made(tokenizer, True)


def _of_characters(
    vocabulary: _Vocabulary, merges: Sequence[tuple[str, str]], spaced: bool
) -> Tokenizer:
    """BPE over characters in which ``<0x0A>`` and the like spell bytes without a token. ``spaced``:
    whether a space precedes a text if the file does not say."""
    model = models.BPE(
        vocabulary.ids,
        list(merges),
        unk_token=vocabulary.token("unknown"),
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    begins_with_space = vocabulary.file.get("tokenizer.ggml.add_space_prefix", spaced)
    first = [normalizers.Prepend(_SPACE)] if begins_with_space else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if begins_with_space else []
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _scores_of_words(vocabulary: _Vocabulary) -> dict[str, float]:
    """Scores of the tokens that characters may be joined to. Tokens that are cut out of a text
    first cannot be formed by joining, unless they contain the sign that replaces spaces later."""
    return {
        token: vocabulary.scores[i]
        for token, i in vocabulary.ids.items()
        if token
        and (kind := vocabulary.types[i]) not in (UNKNOWN, CONTROL, BYTE)
        and (kind != USER_DEFINED or _SPACE in token)
    }


def _frame(tokenizer: Tokenizer, vocabulary: _Vocabulary, adds_bos: bool) -> None:
    """Make texts begin with BOS and end with EOS if the file (or, for BOS, its kind) says so."""
    begin, end = _framing(vocabulary, "bos", adds_bos), _framing(vocabulary, "eos", False)
    if not begin and not end:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, *(f"{t}:1" for t in begin), "$B:1", *(f"{t}:1" for t in end)],
        special_tokens=[(token, vocabulary.ids[token]) for token in {*begin, *end}],
    )


def _framing(vocabulary: _Vocabulary, name: str, default: bool) -> list[str]:
    """The token that ``add_{name}_token`` adds, if any."""
    key = f"tokenizer.ggml.add_{name}_token"
    said, token = vocabulary.file.get(key), vocabulary.token(name)
    if said and token is None:
        raise vocabulary.file.refuse(f"{key} is true, but there is no {name}_token_id")
    wanted = default if said is None else said
    return [token] if wanted and token is not None else []


def _chat_template(file: GgufFile) -> str | dict[str, str] | None:
    """The template, by name if there are several; None without one."""
    named = {
        key.removeprefix(f"{TEMPLATE}."): file.text(key)
        for key in file.metadata
        if key.startswith(f"{TEMPLATE}.")
    }
    template: str | None = file.text(TEMPLATE, None)
    if not named:
        return template
    return named if template is None else {"default": template, **named}


_MAKERS = {"gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _gemma4}
