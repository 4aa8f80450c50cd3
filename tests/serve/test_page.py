"""The start page in a real browser; skipped where there is none.

It needs `pip install playwright` and a Chromium of the system, such as Debian's package.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..e2e.helpers import chain, ngram, open_llm
from ..llmapi.conftest import TextModel
from .conftest import Server, run_server, wait_until

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
PHONE = {"width": 390, "height": 780}
ASKED = "the cat <b>sat</b> on the mat, the cat <b>sat</b>"


@pytest.fixture(scope="module")
def union(text_model: TextModel) -> Iterator[Server]:
    """A server whose drafts have two sources."""
    members = [ngram(4), chain(text_model.draft, 4)]
    config = {"method": "hybrid", "drafters": members, "num_draft_tokens": 9}

    def start() -> Any:
        return open_llm(text_model.folder, config, skip_tokenizer_init=False)

    with run_server(start, api_keys=("key",)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, union: Server) -> Iterator[Any]:
    """The page, connected. problems: what the console said, and requests to other hosts."""
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.problems = []
    page.on("console", lambda m: m.type == "error" and page.problems.append(m.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda r: page.problems.append(r.url) if "127.0.0.1" not in r.url else 0)
    page.goto(union.url)
    expect(page.locator("#model")).to_contain_text("API key")
    page.problems.clear()  # the 401
    page.fill("#key", "key")
    page.locator("#key").dispatch_event("change")
    expect(page.locator("#model")).to_have_text("tiny")
    page.locator("summary").click()
    page.fill("#max_tokens", "80")
    page.fill("#seed", "3")
    yield page
    assert page.problems == []
    page.close()


def _look(page: Any, name: str) -> None:
    """Save pictures into the folder TRTSPEC_SCREENSHOTS, if it is set."""
    folder = os.environ.get("TRTSPEC_SCREENSHOTS")
    page.evaluate("document.getElementById('settings').open = false")
    for scheme in ("light", "dark") if folder else ():
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=Path(str(folder)) / f"{name}-{scheme}.png")


def _done(page: Any) -> None:
    expect(page.locator("#go")).to_have_text("Send", timeout=20_000)


def test_a_conversation(page: Any, union: Server) -> None:
    """Texts, figures and colours are the server's own; later turns see the earlier ones."""
    page.fill("#prompt", ASKED)
    page.keyboard.press("Enter")
    _done(page)
    turns: list[Any] = [{"role": "user", "content": ASKED}]
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 80, "temperature": 0.0, "seed": 3}
    extra = {"return_spec_tokens_details": True, "return_spec_steps": True}
    client = union.client(api_key="key")
    expected = client.chat.completions.create(messages=turns, extra_body=extra, **asked)
    answer = page.locator("article .side")
    content = expected.choices[0].message.content
    assert page.locator(".asked").text_content() == ASKED
    assert answer.locator(".text").text_content() == content
    length = expected.metrics["speculative_decoding"]["acceptance_length"]
    figures = answer.locator(".figures").inner_text()
    assert f"acceptance length {length:.2f}" in figures
    assert f"{expected.usage.completion_tokens} tokens" in figures and "seed 3" in figures
    sources = {
        step["sources"][node]
        for step in expected.choices[0].spec_steps
        for node in step["accepted"]
    }
    assert sources == {0, 1}, "both show"
    for look in ("target", "s0", "s1"):
        assert answer.locator(f".text .{look}").count() > 0
    colour = "e => getComputedStyle(e).backgroundColor"
    assert len({page.locator(f".{look}").first.evaluate(colour) for look in ("s0", "s1")}) == 2

    page.fill("#prompt", "and?")
    page.click("#go")
    _done(page)
    turns += [{"role": "assistant", "content": content}, {"role": "user", "content": "and?"}]
    second = client.chat.completions.create(messages=turns, **asked)
    assert page.locator(".text").nth(1).text_content() == second.choices[0].message.content
    page.fill("#temperature", "0.7")
    page.fill("#seed", "4")
    page.click("#again")
    _done(page)
    asked |= {"temperature": 0.7, "seed": 4}
    other = client.chat.completions.create(messages=turns, **asked)
    assert page.locator(".text").count() == 2
    assert page.locator(".text").nth(1).text_content() == other.choices[0].message.content


def test_steps_by_keyboard(page: Any) -> None:
    page.fill("#prompt", ASKED)
    page.keyboard.press("Enter")
    _done(page)
    page.get_by_role("button", name="Steps").press("Enter")
    panel = page.locator(".step")
    expect(panel).to_contain_text("Step 1 of")
    assert panel.locator(".bonus").count() == 1
    page.keyboard.press("ArrowRight")
    expect(panel).to_contain_text("Step 2 of")
    text = panel.locator("p").inner_text()
    accepted, drafted = int(text.split(": ")[1].split()[0]), int(text.split(" of ")[2].split()[0])
    assert panel.locator(".accepted").count() == accepted
    assert panel.locator(".accepted, .rejected").count() == drafted > 0
    assert page.locator(".text .chosen").count() > 0
    _look(page, "steps-desktop")
    page.set_viewport_size(PHONE)
    _look(page, "steps-phone")
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not wide, "only trees scroll sideways"
    panel.press("Escape")
    expect(panel).to_be_hidden()


def test_a_race(page: Any) -> None:
    page.fill("#prompt", ASKED)
    page.click("#race")
    expect(page.locator(".verdict")).to_contain_text("The same text", timeout=20_000)
    on, off = page.locator(".text").all()
    text = on.text_content()
    assert text and off.text_content() == text
    assert on.locator(".s0, .s1").count() > 0 and off.locator(".s0, .s1").count() == 0
    assert page.locator(".figures").nth(1).inner_text().count("length 1.00") == 1
    _look(page, "race-desktop")
    page.set_viewport_size(PHONE)
    _look(page, "race-phone")
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".text").nth(1)).to_have_text(text, timeout=20_000)


def test_stop_and_refusals(page: Any, union: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    target = union.llm._runtime.target
    forward = target.forward

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.02)  # else the text has ended before it can be stopped
        return forward(*args, **options)

    monkeypatch.setattr(target, "forward", slow)
    page.fill("#max_tokens", "0")
    page.fill("#prompt", ASKED)
    page.click("#go")
    expect(page.locator("#error")).to_contain_text("max_tokens")
    assert page.input_value("#prompt") == ASKED, "it can be sent again"
    page.problems.clear()  # the 400
    page.fill("#max_tokens", "200")
    page.click("#go")
    expect(page.locator(".figures")).to_contain_text("tokens")
    page.keyboard.press("Escape")
    _done(page)
    wait_until(lambda: union.llm.load().num_running == 0, "the request ended")
    assert 0 < int(page.locator("[data-figure=tokens]").inner_text().split()[0]) < 200
    assert page.locator("#error").inner_text() == ""
    page.get_by_role("button", name="New chat").click()
    assert page.locator("article").count() == 0


def test_who_proposed_what(page: Any) -> None:
    """Characters that several tokens share, hidden marks, reasoning and forced tokens."""
    emitted = ["<think>", "hm", "</think>", "a", "bytes:\\xe2\\x82", "bytes:\\xac", "<b>"]
    step = {"emitted": emitted, "accepted": [0, 1, 2, 3, 4, 5], "tokens": emitted[:-1]}
    step |= {"parents": [-1, 0, 1, 2, 3, 4], "sources": [0, 0, 0, 1, 0, None]}
    delta = {"reasoning_content": "hm", "content": "a\u20ac<b>"}
    chunk = {"choices": [{"delta": delta, "spec_steps": [step], "finish_reason": "stop"}]}
    body = f": waiting\n\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    answer = {"content_type": "text/event-stream", "body": body}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
    page.fill("#prompt", ASKED)
    page.click("#go")
    _done(page)
    look = "found => found.map(e => [e.className, e.textContent])"
    assert page.locator(".thought span").evaluate_all(look) == [["s0", "hm"]]
    expected = [["s1", "a"], ["forced", "\u20ac"], ["target", "<b>"]]
    assert page.locator(".text span").evaluate_all(look) == expected


def test_a_model_without_a_chat_template(
    page: Any, union: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(union.llm.tokenizer, "chat_template", None)
    page.locator("#key").dispatch_event("change")
    expect(page.locator("#mode")).to_have_value("text")
    page.fill("#prompt", ASKED)
    page.keyboard.press("Control+Enter")
    _done(page)
    client = union.client(api_key="key")
    asked: dict[str, Any] = {"max_tokens": 80, "temperature": 0.0}
    expected = client.completions.create(model="tiny", prompt=ASKED, **asked)
    assert page.locator(".text").text_content() == expected.choices[0].text
    page.problems.clear()  # the 400
