"""The small parts: the intake, single tokens, the gate, the page."""

from __future__ import annotations

import importlib
import re
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import trtspec.serve
from trtspec.errors import ConfigError
from trtspec.executor.step.step_result import TokenLogprobs
from trtspec.serve.errors import ApiError
from trtspec.serve.gate import Gate
from trtspec.serve.logprobs import CompletionLogprobs
from trtspec.serve.settings import ServeSettings
from trtspec.serve.token_text import TokenText, longest_token

from .conftest import Server, wait_until
from .test_load import LONG, is_idle


def test_a_client_that_leaves_while_its_prompt_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts after it has gone is aborted all the same."""
    submit, handles = server.llm.submit, []

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.4)
        handles.extend(submit(*args, **options))
        return handles

    monkeypatch.setattr(server.llm, "submit", slow)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=0.15)
    wait_until(lambda: handles, "it started")
    wait_until(lambda: handles[0].output.outputs[0].finish_reason, "it ended")
    assert handles[0].output.outputs[0].finish_reason == "abort"
    wait_until(lambda: is_idle(server), "the server is idle")


def test_tokens_of_a_byte_level_vocabulary(server: Server) -> None:
    tokenizer = server.llm.tokenizer
    tokens = TokenText(tokenizer)
    text = "the hat, é€\n 😀"
    ids = tokenizer(text)["input_ids"]
    assert b"".join(map(tokens.raw, ids)).decode() == text
    euro = tokenizer("€")["input_ids"]
    assert [tokens.text(i) for i in euro] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert tokens.text(0) == "<|end|>"
    assert longest_token(tokenizer) == max(map(len, tokenizer.get_vocab()))


@pytest.mark.parametrize(("prompt", "begins"), [("a", 0), ("<|end|>a", 7), (None, 7)])
def test_a_token_that_only_the_tokenizer_adds_has_no_place_in_the_text(
    server: Server, prompt: str | None, begins: int
) -> None:
    entry = TokenLogprobs(server.llm.tokenizer("a")["input_ids"][0], -1.0, {})
    output: Any = SimpleNamespace(
        prompt=prompt, prompt_token_ids=[0, entry.token], prompt_logprobs=[None, entry]
    )
    form = CompletionLogprobs(TokenText(server.llm.tokenizer))
    assert form.of_prompt(output)["text_offset"] == [0, begins]


def test_tokens_with_byte_fallback() -> None:
    """As in Llama 2's vocabulary: ▁ is a space, and bytes have tokens of their own."""
    words = ["<unk>", "▁the", "cat", "<0xE2>", "<0x82>"]
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    tokens = TokenText(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>"))
    assert [tokens.raw(i) for i in range(6)] == [b"<unk>", b" the", b"cat", b"\xe2", b"\x82", b""]
    assert tokens.text(1) == " the" and tokens.text(3) == "bytes:\\xe2"


def test_tokens_of_other_vocabularies() -> None:
    """A token is what it adds behind others: its own space included, and no mark of a joint."""
    metaspace = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("cat", -1.0)], 0))
    metaspace.decoder = decoders.Metaspace()
    tokens = TokenText(PreTrainedTokenizerFast(tokenizer_object=metaspace, unk_token="<unk>"))
    assert [tokens.raw(i) for i in range(4)] == [b"<unk>", b" the", b"cat", b""]
    parts = Tokenizer(models.WordPiece({"the": 0, "##re": 1, "\ufffd": 2}, unk_token="the"))
    parts.decoder = decoders.WordPiece()
    tokens = TokenText(PreTrainedTokenizerFast(tokenizer_object=parts))
    assert [tokens.text(i) for i in range(3)] == [" the", "re", " \ufffd"]


def test_of_two_tokens_with_one_text_the_likelier_is_told() -> None:
    class Texts:
        def text(self, token: int) -> str:
            return "ab"[token == 3]

        def raw(self, token: int) -> bytes:
            return self.text(token).encode()

    form = CompletionLogprobs(Texts())  # type: ignore[arg-type]
    entry = TokenLogprobs(token=2, logprob=-4.0, top={1: -1.0, 3: -2.0, 2: -4.0})
    assert form([entry])["top_logprobs"] == [{"a": -1.0, "b": -2.0}]


def test_the_gate() -> None:
    gate = Gate(batch=2, queue=2)
    with gate.enter(3):
        with pytest.raises(ApiError) as full:
            gate.enter(2).__enter__()
        assert full.value.status == 429 and "Retry-After" in full.value.headers
        with gate.enter(1):
            assert (gate.num_sequences, gate.num_requests) == (4, 2)
    with pytest.raises(ZeroDivisionError), gate.enter(4):
        1 / 0  # noqa: B018
    assert (gate.num_sequences, gate.num_requests) == (0, 0)
    for _ in range(100):
        gate.observe(1000.0)
    with gate.enter(4):
        assert 1.0 <= gate.expected_wait <= 60.0


@pytest.mark.parametrize(
    "bad",
    [
        {"model_names": ()}, {"model_names": ("",)}, {"port": 70000}, {"api_keys": ("é",)},
        {"request_timeout": 0.0}, {"request_timeout": float("nan")}, {"drain_timeout": -1.0},
        {"max_body_bytes": 10}, {"metrics_prefix": "a b"}, {"root_path": "/api/"},
        {"root_path": "api"}, {"worker": 2}, {"max_failed_steps": 0},
        {"keep_alive": 0.0}, {"drain_seconds": -1.0}, {"comment_interval": 0.0},
        {"lora_dir": "/nowhere/at/all"},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_honoured(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad)).rstrip("s")[-4:]):
        ServeSettings(**{"model_names": ("tiny",), **bad})


def test_the_page_needs_nothing_else(server: Server) -> None:
    response = server.get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.search(r"(https?:)?//[a-z]", response.text)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"uvicorn.*pip install 'trtspec\[serve\]'"):
        importlib.reload(trtspec.serve)
