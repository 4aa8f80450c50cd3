"""The text of tokens as they come, over tokenizers of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizer

from trtspec.config.sampling import SamplingParams
from trtspec.executor.text.detokenizer import Detokenizer
from trtspec.executor.text.stopping import StopChecker

MARK = "\ufffd"
END = "</s>"
SPACES = decoders.Replace("▁", " ")
GEMMA = [SPACES, decoders.ByteFallback(), decoders.Fuse()]
LLAMA = [*GEMMA, decoders.Strip(" ", 1, 0)]
MARIAN = [decoders.ByteFallback(), decoders.Metaspace()]
CHARS = "aab  éこの猫🙂" + MARK


def letters() -> list[str]:
    """GPT-2's letter of every byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(rest)) for b in range(256)]


def bytes_and(words: Sequence[str]) -> dict[str, int]:
    """A vocabulary in which the id of a byte is that byte."""
    pieces = [*(f"<0x{b:02X}>" for b in range(256)), *words]
    return {piece: i for i, piece in enumerate(pieces)}


@dataclass
class Kind:
    """A tokenizer; `spell` makes tokens of one character, of which only bytes are no text."""

    backend: Tokenizer
    spell: Callable[[random.Random, str], list[int]]

    def tokens(self, rng: random.Random, text: str) -> tuple[list[int], list[int]]:
        """Tokens of a text and, for each prefix of them, how many spell whole characters."""
        tokens, whole = [], [0]
        for char in text:
            start = len(tokens)
            tokens += self.spell(rng, char)
            whole += [start] * (len(tokens) - start - 1) + [len(tokens)]
        return tokens, whole


def byte_level(rng: random.Random, straddling: int = 200) -> Kind:
    """Some tokens hold the end of a character and the beginning of the next."""
    spelling = letters()
    data = "".join(rng.choice(CHARS) for _ in range(400)).encode()
    starts = [rng.randrange(len(data)) for _ in range(straddling)]
    longer = {data[i : i + rng.randrange(2, 6)] for i in starts}
    words = [bytes([b]) for b in range(256)] + sorted(w for w in longer if len(w) > 1)
    vocab = {"".join(spelling[b] for b in word): i for i, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    return Kind(backend, lambda rng, char: list(char.encode()))


def fallback(steps: Sequence[Any], words: Sequence[str] = ("▁a", "▁", "a", "の", MARK)) -> Kind:
    vocab = bytes_and(words)
    backend = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(list(steps))
    backend.add_special_tokens([END])

    def spell(rng: random.Random, char: str) -> list[int]:
        known = [vocab[w] for w in (char, char.replace(" ", "▁")) if w in vocab]
        return [known[-1]] if known and rng.random() < 0.7 else list(char.encode())

    return Kind(backend, spell)


def unigram(steps: Sequence[Any]) -> Kind:
    kind = fallback(steps)
    pieces = kind.backend.get_vocab()
    scored = [(piece, -1.0) for piece in sorted(pieces, key=pieces.__getitem__) if piece != END]
    backend = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    backend.decoder = kind.backend.decoder
    backend.add_special_tokens([END])
    return Kind(backend, kind.spell)


def wordpiece() -> Kind:
    words = ["a", "##a", "b", "##b", "猫", "##猫", MARK, "##" + MARK, ".", "é"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([END])
    return Kind(backend, lambda rng, char: [rng.randrange(len(words))])


KINDS: dict[str, Callable[[random.Random], Kind]] = {
    "byte_level": byte_level,
    "gemma": lambda rng: fallback(GEMMA),
    "llama": lambda rng: fallback(LLAMA),
    "unigram": lambda rng: unigram(MARIAN),
    "unigram_llama": lambda rng: unigram(LLAMA),
    "wordpiece": lambda rng: wordpiece(),
}


def pieces(backend: Any, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    stream = Detokenizer(backend, context=prompt)
    return [*map(stream.push, tokens), stream.flush()]


@pytest.mark.parametrize("name", KINDS)
def test_pieces_are_what_is_whole(name: str) -> None:
    """After each token the text is decode(all) less decode(prompt), less what is unfinished:
    wherever a prompt begins and ends, with special tokens anywhere; and stop strings match in it.
    """
    rng = random.Random(name)
    kind = KINDS[name](rng)
    end = kind.backend.token_to_id(END)
    checked = 0
    for _ in range(250):
        tokens, whole = kind.tokens(rng, "".join(rng.choices(CHARS, k=rng.randrange(1, 30))))
        cut = rng.randrange(len(tokens) + 1)
        # Of a prompt that begins inside a character only that one is lost.
        begin = rng.choice([0, 0, rng.randrange(cut + 1)])
        if begin and not kind.backend.decode(tokens[begin : whole[cut]]).strip(MARK):
            begin = 0
        shown = [kind.backend.decode(tokens[: whole[i]]) for i in range(cut, len(tokens) + 1)]
        shown = [text[len(shown[0]) :] for text in shown]
        stream = Detokenizer(kind.backend, context=mixed(rng, tokens[begin:cut], end))
        text = ""
        for i, token in enumerate(tokens[cut:], start=1):
            text += stream.push(token)
            assert text == shown[i], (tokens[begin:cut], tokens[cut : cut + i])
            assert stream.push(end) == ""
        assert stream.flush() == ""
        checked += 1
        last = rng.randrange(cut, len(tokens) + 1)  # may be inside a character
        is_cut = last > cut and whole[last] < last
        got = "".join(pieces(kind.backend, tokens[begin:cut], tokens[cut:last]))
        assert got == shown[last - cut] + MARK * is_cut
        check_stops(rng, kind, tokens[begin:cut], tokens[cut:], shown)
    assert checked == 250


def mixed(rng: random.Random, tokens: Sequence[int], special: int) -> list[int]:
    """Special tokens put in between; they are skipped."""
    return [t for token in tokens for t in [token, *[special] * rng.choice([0, 0, 0, 12])]]


def check_stops(
    rng: random.Random, kind: Kind, prompt: list[int], tokens: list[int], shown: list[str]
) -> None:
    whole = shown[-1]
    if not whole:
        return
    begin = rng.randrange(len(whole))
    stop = whole[begin : begin + rng.randrange(1, 4)]
    checker = StopChecker(SamplingParams(stop=stop), (), kind.backend, prompt)
    texts = [""]
    while not checker.is_finished:  # several tokens a step
        checker.accept(tokens[checker.num_tokens :][: rng.randrange(1, 13)], None)
        texts.append(checker.text)
        assert texts[-1].startswith(texts[-2]) and whole.startswith(texts[-1])
    assert checker.text == whole[: whole.index(stop)] and checker.stop_reason == stop
    assert checker.num_tokens == next(i for i, text in enumerate(shown) if stop in text)


@pytest.mark.parametrize("steps", [GEMMA, LLAMA, MARIAN])
def test_a_prompt_that_ends_inside_a_character(steps: Sequence[Any]) -> None:
    backend = fallback(steps).backend
    assert (
        "".join(pieces(backend, list("これは何です".encode()), list("猫です".encode()))) == "猫です"
    )
    smile = list("🙂".encode())
    for before in ([], [256], list("何です".encode()), list("です".encode()[1:])):
        for cut in (1, 2, 3):
            got = pieces(backend, [*before, *smile[:cut]], smile[cut:])
            assert got == [*[""] * (3 - cut), "🙂", ""]
        assert pieces(backend, [*before, *smile[:2]], []) == [""]
        assert pieces(backend, [*before, *smile[:2]], smile[2:3]) == ["", MARK]


@pytest.mark.parametrize("name", KINDS)
def test_a_literal_mark_is_a_character(name: str) -> None:
    """It is not held back, and one that ends a prompt stays there."""
    rng = random.Random(0)
    kind = KINDS[name](rng)
    vocab = kind.backend.get_vocab()
    spellings = [list(MARK.encode())] if "<0x41>" in vocab or name == "byte_level" else []
    spellings += [[vocab[MARK]]] if MARK in vocab else []
    assert spellings
    a = vocab["a"]
    for mark in spellings:
        prompt = [a, *mark]
        behind = kind.backend.decode([*prompt, a])[len(kind.backend.decode(prompt)) :]
        assert pieces(kind.backend, prompt, [a]) == [behind, ""]
        stopped = StopChecker(SamplingParams(stop=MARK), (), kind.backend, prompt)
        stopped.accept([a], None)
        assert not stopped.is_finished and stopped.text == behind
        stopped.accept(mark, None)
        assert stopped.stop_reason == MARK
        got = pieces(kind.backend, [a], mark)
        assert got[-2].strip() == MARK and got[-1] == ""
        assert pieces(kind.backend, [], mark)[-2:] == [MARK, ""]


def with_examples(test: Any) -> Any:
    """Second bytes that their first one excludes (the Unicode Standard, table 3-7), and those that
    they begin with."""
    for first, last in (("e080", "e09f"), ("eda0", "edbf"), ("f080", "f08f"), ("f490", "f4bf")):
        for data in (first, last, first + "80", "41" + last + "8041", first + first):
            test = example(bytes.fromhex(data))(test)
    return test


@given(st.binary(max_size=30))
@with_examples
@settings(max_examples=100, deadline=None)
def test_invalid_bytes_of_byte_level_vocabularies(data: bytes) -> None:
    backend = LEVEL.backend
    assert "".join(pieces(backend, [], list(data))) == backend.decode(list(data))


LEVEL = byte_level(random.Random(1))
FALLBACK = fallback(LLAMA)


@given(
    st.lists(st.one_of(st.integers(0, 255), st.sampled_from([0xE7, 0x8C, 0xAB, 256, 257, 259]))),
    st.integers(0, 30),
)
@example([0xED, 0xA0], 0)
@example([0xED, 0xBF, 0x80, 256], 1)
@example([0xE7, 0xED, 0xA0, 0xE7, 0x8C], 2)
@settings(max_examples=200, deadline=None)
def test_invalid_bytes_of_byte_fallback(tokens: list[int], cut: int) -> None:
    """Each has a mark, as in the tokenizer's decode; characters beside them stand."""
    backend, text, run = FALLBACK.backend, "", bytearray()
    for token in [*tokens, 999]:
        if token < 256:
            run.append(token)
            continue
        valid = run.decode("utf-8", "surrogateescape")
        if token == 999 and (unfinished := unfinished_bytes(bytes(run))):
            valid = valid[:-unfinished] + MARK
        text += "".join(MARK if "\udc80" <= char <= "\udcff" else char for char in valid)
        text += {256: " a", 257: " ", 259: "の"}.get(token, "")
        run.clear()
    prompt, output = [258, *tokens[:cut]], tokens[cut:]
    got = "".join(pieces(backend, prompt, output))
    assert ("a" + text).endswith(got)
    assert "".join(pieces(backend, [258], tokens)) == text
    before = "".join(pieces(backend, [258], tokens[:cut]))
    if not before.endswith(MARK):
        assert before + got == text
    if all(run < 0x80 for run in tokens if run < 256):
        assert "a" + text == backend.decode([258, *tokens])


def unfinished_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character."""
    for count in (3, 2, 1):
        try:
            data[-count:].decode()
        except UnicodeDecodeError as error:
            if len(data) >= count and error.start == 0 and error.reason.startswith("unexpected"):
                return count
    return 0


@pytest.mark.parametrize("tokens", [[0xFF, 256], [0xE2, 0x82, 256], [0x80] * 5, [0xFF] * 9 + [259]])
def test_marks_are_the_tokenizers(tokens: list[int]) -> None:
    backend = FALLBACK.backend
    assert "".join(pieces(backend, [], tokens)) == backend.decode(tokens)


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def decode(self, tokens: list[int], **options: Any) -> str:
        self.count += len(tokens)
        return str(self.backend.decode(tokens, **options))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("text", ["猫です" * 1000, "a b é" * 1000, "junk", "silent"])
def test_a_token_costs_the_same_in_a_long_text(name: str, text: str) -> None:
    rng = random.Random(2)
    kind = KINDS[name](rng)
    if text == "junk":
        tokens = [0xE7, 0x80, 0x80, 0x80, 0xFF] * 1000 if name != "wordpiece" else [0] * 5000
    elif text == "silent":
        tokens = [kind.backend.token_to_id(END)] * 5000
    else:
        tokens, _ = kind.tokens(rng, text)
    counting = Counting(kind.backend)
    stream = Detokenizer(counting, context=tokens)
    counting.count = 0
    for token in tokens:
        stream.push(token)
    assert counting.count <= 10 * len(tokens)


class Slow(PreTrainedTokenizer):
    """A tokenizer in pure Python, as those over sentencepiece: spaces at both ends are left out."""

    def __init__(self, has_bytes: bool) -> None:
        self._words = bytes_and(["▁a", "▁", "猫", MARK, END])
        self._has_bytes = has_bytes
        super().__init__(eos_token=END)

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._words)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return [char if char in self._words else "▁" for char in text]

    def _convert_token_to_id(self, token: str) -> int:
        return self._words.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str | None:
        return next((word for word, i in self._words.items() if i == index), None)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        if not self._has_bytes:
            return "".join(tokens).replace("▁", " ").strip(" ")
        spelt = b"".join(
            bytes([self._words[t]]) if self._words[t] < 256 else t.replace("▁", " ").encode()
            for t in tokens
        )
        return spelt.decode("utf-8", "replace").strip(" ")


class Closed(Slow):
    """Does not say which tokens are bytes: their pieces are marks (as with Mistral's own code)."""

    def __init__(self) -> None:
        super().__init__(has_bytes=True)

    def _convert_id_to_token(self, index: int) -> str | None:
        return MARK if 0x80 <= index < 256 else super()._convert_id_to_token(index)

    def _decode(self, token_ids: list[int], **options: Any) -> str:
        words = [word for t in token_ids for word, i in self._words.items() if i == t]
        return self.convert_tokens_to_string(words)


def test_tokenizers_that_hide_their_bytes() -> None:
    closed, cat = Closed(), list("猫".encode())
    assert pieces(closed, [256], [*cat, 256]) == ["", "", "猫", " a", ""]
    assert pieces(closed, [256, *cat[:2]], [*cat[2:], 256]) == ["猫", " a", ""]
    assert pieces(closed, [256, *cat[:2]], []) == [""]
    assert pieces(closed, [256], cat[:2]) == ["", "", MARK]
    assert pieces(closed, [256, 259], [256, 259, 256]) == [" a", MARK, " a", ""]


def test_tokenizers_in_pure_python() -> None:
    slow = Slow(has_bytes=True)
    cat = list("猫".encode())
    assert pieces(slow, [256, *cat[:1]], [*cat[1:], 256]) == ["", "猫", " a", ""]
    assert pieces(slow, [256], [257, 256, 260, *cat[:2]]) == ["", "  a", "", "", "", MARK]
    assert pieces(slow, [256, 259], [256, 259, 256]) == [" a", MARK, " a", ""]
    spelt = Slow(has_bytes=False)
    assert pieces(spelt, [256], [0x41, 258]) == ["<0x41>", "猫", ""]
