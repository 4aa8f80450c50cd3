"""Where a text ends, and its characters, token by token."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from trtspec.config.sampling import SamplingParams
from trtspec.executor.text.detokenizer import Detokenizer
from trtspec.executor.text.stopping import StopChecker

from .text_ends import Feed, run

EOS = 256


def byte_symbols() -> dict[int, str]:
    """GPT-2's printable symbol of every byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: id = byte, 256 is </s>, 257 the word ' the', 258 'ab', 259 the first two bytes of
    the euro sign."""
    symbols = byte_symbols()
    vocab = {symbol: byte for byte, symbol in symbols.items()}
    euro = "".join(symbols[b] for b in "€".encode()[:2])
    vocab |= {"</s>": 256, symbols[32] + "the": 257, "ab": 258, euro: 259}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def ids(text: str) -> list[int]:
    return list(text.encode())


@given(st.text(max_size=40), st.binary(max_size=12))
@settings(max_examples=100, deadline=None)
def test_pieces_make_the_whole(tokenizer: Any, text: str, junk: bytes) -> None:
    tokens = [*ids(text), EOS, *junk, 257, *ids(text)]
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    stream = Detokenizer(tokenizer)
    pieces = [stream.push(token) for token in tokens] + [stream.flush()]
    assert "".join(pieces) == whole and stream.flush() == ""


def test_characters_come_whole(tokenizer: Any) -> None:
    stream = Detokenizer(tokenizer)
    assert [stream.push(t) for t in (97, 259, 0xAC, 257)] == ["a", "", "€", " the"]
    stream.push(0xE2)
    assert stream.flush() == "\ufffd"


def test_long_junk(tokenizer: Any) -> None:
    tokens = [0x80] * 400 + ids("é") * 3 + [0xE2] * 100 + ids("x")
    stream = Detokenizer(tokenizer)
    text = ""
    for token in tokens:
        text += stream.push(token)
    assert text + stream.flush() == tokenizer.decode(tokens)


def test_special_tokens(tokenizer: Any) -> None:
    shown = Detokenizer(tokenizer, skip_special_tokens=False)
    assert [shown.push(t) for t in (97, EOS, 98)] == ["a", "</s>", "b"]
    hidden = Detokenizer(tokenizer.backend_tokenizer)
    assert [hidden.push(t) for t in (97, EOS, EOS, 98)] == ["a", "", "", "b"]


def test_leading_space_of_metaspace_tokenizers() -> None:
    backend = Tokenizer(models.BPE(vocab={"▁he": 0, "▁is": 1, "t": 2}, merges=[]))
    backend.decoder = decoders.Metaspace()
    alone, behind = Detokenizer(backend), Detokenizer(backend, context=[0])
    assert [alone.push(t) for t in (1, 1, 2)] == ["is", " is", "t"]
    assert [behind.push(t) for t in (1, 1, 2)] == [" is", " is", "t"]
    params = SamplingParams(stop=" is is")
    checker = StopChecker(params, (), backend, prompt=[2, 0])
    assert run(Feed(checker, params, (), 9), [1, 1, 2]) == 2 and checker.text == ""


@pytest.mark.parametrize("tokens", [[0, 1], [0, 0, 1], [0, 3, 1, 0, 1], [4, 0, 1, 4, 1], [2, 0, 1]])
def test_leading_spaces_of_their_own(tokens: list[int]) -> None:
    """Llama 2's decoder takes one space off the beginning of what it decodes."""
    vocab = {"▁": 0, "▁is": 1, "t": 2, "▁▁": 3}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.add_special_tokens(["</s>"])
    spaces = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence([spaces, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    stream = Detokenizer(backend)
    text = "".join(stream.push(token) for token in tokens) + stream.flush()
    assert text == backend.decode(tokens)
    behind = Detokenizer(backend, context=[4, 2])
    text = "".join(behind.push(token) for token in tokens) + behind.flush()
    assert "t" + text == backend.decode([2, *tokens])


def test_a_character_that_the_prompt_begins(tokenizer: Any) -> None:
    for prompt in ([97, 259], [*ids("abcdefghij"), 259]):
        checker = StopChecker(SamplingParams(), (EOS,), tokenizer, prompt)
        checker.accept([0xAC, 97, EOS], "stop")
        assert checker.text == "€a"
        nothing = StopChecker(SamplingParams(), (EOS,), tokenizer, prompt)
        nothing.accept([EOS], "stop")
        assert nothing.text == ""


@pytest.mark.parametrize(
    ("options", "tokens", "taken", "reason", "stop_reason", "text"),
    [
        ({}, [*ids("ab"), EOS, 99], 3, "stop", None, "ab"),
        ({"ignore_eos": True, "max_tokens": 4}, [97, EOS, 98, 99, 99], 4, "length", None, "abc"),
        ({"stop_token_ids": [98]}, ids("abc"), 2, "stop", 98, "a"),
        (
            {"stop_token_ids": [98], "include_stop_str_in_output": True},
            ids("abc"),
            2,
            "stop",
            98,
            "ab",
        ),
        ({"max_tokens": 2}, ids("abc"), 2, "length", None, "ab"),
        ({"max_tokens": 2}, [97, 0xE2], 2, "length", None, "a\ufffd"),
        ({"stop": "bc"}, ids("abcd"), 3, "stop", "bc", "a"),
        ({"stop": "bc", "include_stop_str_in_output": True}, ids("abcd"), 3, "stop", "bc", "abc"),
        ({"stop": "c", "max_tokens": 3}, ids("abc"), 3, "stop", "c", "ab"),
        ({"stop": ["b", "ab"]}, [120, 258, 99], 2, "stop", "ab", "x"),
        ({"stop": "he t"}, [*ids("she"), 257], 4, "stop", "he t", "s"),
        ({"stop": ["€", "h"]}, [259, 0xAC], 2, "stop", "€", ""),
        ({"stop": "a", "min_tokens": 2}, ids("aaba"), 4, "stop", "a", "aab"),
        ({"stop": "ab", "detokenize": True}, ids("aab"), 3, "stop", "ab", "a"),
        ({}, ids("ab"), 2, None, None, "ab"),
        # Of special tokens, which are not shown.
        ({"stop": "</s>"}, [97, EOS, 98], 2, "stop", "</s>", "a"),
        ({"stop": "</s>", "ignore_eos": True}, [97, EOS, 98], 2, "stop", "</s>", "a"),
        (
            {"stop": "</s>", "ignore_eos": True, "stop_token_ids": [EOS]},
            [97, EOS, 98],
            2,
            "stop",
            "</s>",
            "a",
        ),
        (
            {"stop": "</s>", "include_stop_str_in_output": True},
            [97, EOS],
            2,
            "stop",
            "</s>",
            "a</s>",
        ),
        (
            {"stop": "</s>", "skip_special_tokens": False, "include_stop_str_in_output": True},
            [97, EOS],
            2,
            "stop",
            "</s>",
            "a</s>",
        ),
        (
            {"stop": "</s>", "ignore_eos": True, "min_tokens": 2},
            [97, EOS, 98, EOS],
            4,
            "stop",
            "</s>",
            "ab",
        ),
        ({"stop": "</s>", "ignore_eos": True}, ids("a</s>b"), 5, "stop", "</s>", "a"),
        ({"stop": "</s>", "ignore_eos": True}, [0xE2, EOS], 2, "stop", "</s>", "\ufffd"),
        ({"stop": ["</s>", "b</s>"]}, [97, 98, EOS], 3, "stop", "b</s>", "a"),
        ({"stop": "a</s>b", "ignore_eos": True}, [97, 97, EOS, 98], 4, "stop", "a</s>b", "a"),
        ({"stop": "ab", "ignore_eos": True}, [97, EOS, 98], 3, "stop", "ab", ""),
        ({"stop": "</s></s>", "ignore_eos": True}, [97, EOS, EOS], 3, "stop", "</s></s>", "a"),
    ],
)
def test_endings(
    tokenizer: Any,
    options: dict[str, Any],
    tokens: list[int],
    taken: int,
    reason: str | None,
    stop_reason: int | str | None,
    text: str,
) -> None:
    params = SamplingParams(**options)
    for step in (1, 2, 9):
        checker = StopChecker(params, (EOS,), tokenizer)
        feed = Feed(checker, params, (EOS,), params.max_tokens or 32)
        assert run(feed, tokens, step) == taken
        assert (checker.finish_reason, checker.stop_reason) == (reason, stop_reason)
        assert checker.text == text


def test_streamed_text_is_never_taken_back(tokenizer: Any) -> None:
    params = SamplingParams(stop=["abcx", "bcd"])
    checker = StopChecker(params, (EOS,), tokenizer)
    feed = Feed(checker, params, (EOS,), 32)
    shown = []
    for token in ids("xabcxx"):
        shown.append((feed(token), checker.text))
        if checker.is_finished:
            break
    assert shown == [(None, "x")] * 1 + [(None, "x")] * 3 + [("stop", "x")]


@given(
    st.lists(st.sampled_from([97, 98, 99, 257, 258, 259, 0xAC, EOS]), max_size=25),
    st.lists(st.text("abc t", min_size=1, max_size=3), max_size=3),
    st.integers(1, 20),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_prefix_property(
    tokenizer: Any, tokens: list[int], stops: list[str], limit: int, ignore_eos: bool
) -> None:
    """What was shown only ever grows, and the end is that of a search over the whole text."""
    params = SamplingParams(stop=tuple(stops), ignore_eos=ignore_eos)
    checker = StopChecker(params, (EOS,), tokenizer)
    feed = Feed(checker, params, (EOS,), limit)
    shown = ""
    for count, token in enumerate(tokens, start=1):
        reason = feed(token)
        assert checker.text.startswith(shown)
        shown = checker.text
        assert all(stop not in shown for stop in stops)
        if reason:
            assert count <= limit
            break
    text = tokenizer.decode(tokens[: checker.num_tokens], skip_special_tokens=True)
    assert text.startswith(checker.text)
    if checker.finish_reason is None:
        assert all(stop not in text.rstrip("\ufffd") for stop in stops)
    elif isinstance(checker.stop_reason, str):
        assert text.startswith(checker.text + checker.stop_reason)
    else:
        assert checker.text == text


@given(
    st.lists(st.sampled_from([97, 98, 258, EOS]), max_size=25),
    st.lists(
        st.sampled_from(["</s>", "a</s>", "</s>b", "b</s></s>a", "s>a</s>", "ab", "ba", "a"]),
        min_size=1,
        max_size=3,
        unique=True,
    ),
    st.integers(0, 6),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_stop_strings_of_hidden_tokens(
    tokenizer: Any, tokens: list[int], stops: list[str], least: int, keeps: bool
) -> None:
    """As a search over the whole text after each token; what is shown is never taken back."""
    params = SamplingParams(
        stop=tuple(stops),
        ignore_eos=True,
        min_tokens=least,
        max_tokens=99,
        include_stop_str_in_output=keeps,
    )
    checker = StopChecker(params, (EOS,), tokenizer)
    before, texts = {True: "", False: ""}, [""]
    for count, token in enumerate(tokens, start=1):
        checker.accept([token], None)
        texts.append(checker.text)
        assert texts[-1].startswith(texts[-2])
        hits = []
        for i, stop in enumerate(stops):
            is_hidden = "</s>" in stop
            text = tokenizer.decode(tokens[:count], skip_special_tokens=not is_hidden)
            begin = text.find(stop, max(len(before[is_hidden]) - len(stop) + 1, 0))
            if begin >= 0 and count > least:
                kept = re.sub("</s>|<(/s?)?$", "", text[:begin])
                hits.append((len(kept), i, kept + stop * keeps))
        for is_hidden in before:
            before[is_hidden] = tokenizer.decode(tokens[:count], skip_special_tokens=not is_hidden)
        if hits:
            _, i, text = min(hits)
            assert (checker.stop_reason, checker.text) == (stops[i], text)
            return
        assert not checker.is_finished
    assert tokenizer.decode(tokens, skip_special_tokens=True).startswith(checker.text)


def test_without_text() -> None:
    checker = StopChecker(SamplingParams(), (EOS,))
    assert checker.accept([1, 2], "length") == 2 and checker.text == ""
    assert checker.finish_reason == "length" and checker.num_tokens == 2
    quiet = StopChecker(SamplingParams(detokenize=False), (EOS,), object())
    assert quiet.accept([EOS], "stop") == 1 and quiet.is_finished and quiet.text == ""
