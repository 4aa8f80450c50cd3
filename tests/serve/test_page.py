"""The start page in a real browser; skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Serve

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture
def page() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 700})
        page.problems = []
        page.on("console", lambda m: m.type == "error" and page.problems.append(m.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda r: page.problems.append(r.url) if "127.0.0.1" not in r.url else 0)
        yield page
        browser.close()


def test_the_page(serve: Serve, page: Any) -> None:
    """The text streams in, shaded by accepted drafts; the figures are the server's own."""
    with serve("tree", api_keys=("key",)) as server:
        page.goto(server.url)
        expect(page.locator("#model")).to_contain_text("API key")
        page.problems.clear()  # the 401
        page.fill("#key", "key")
        page.locator("#key").dispatch_event("change")
        expect(page.locator("#model")).to_have_text("tiny")
        page.fill("#prompt", "the cat <b>sat</b>")
        page.fill("#max_tokens", "80")
        page.fill("#temperature", "0.7")
        page.fill("#seed", "3")
        page.click("#go")
        expect(page.locator("#length")).not_to_have_text("-", timeout=20_000)
        expect(page.locator("#go")).to_have_text("Generate", timeout=20_000)
        expected = server.client(api_key="key").completions.create(
            model="tiny", prompt="the cat <b>sat</b>", max_tokens=80, temperature=0.7, seed=3,
            extra_body={"return_spec_tokens_details": True},
        )  # fmt: skip
        assert page.locator("#text").text_content() == expected.choices[0].text
        length = expected.metrics["speculative_decoding"]["acceptance_length"]
        assert page.inner_text("#length") == f"{length:.2f}"
        assert page.inner_text("#tokens") == str(expected.usage.completion_tokens)
        assert float(page.inner_text("#speed")) > 0
        assert page.locator("#text span[class^=d]").count() > 0
        colour = page.locator("#text span[class^=d]").first.evaluate(
            "e => getComputedStyle(e).backgroundColor"
        )
        assert colour != "rgba(0, 0, 0, 0)", "the policy keeps the style away"
        if "TRTSPEC_SCREENSHOT" in os.environ:
            page.screenshot(path=os.environ["TRTSPEC_SCREENSHOT"])
        page.fill("#max_tokens", "0")
        page.click("#go")
        expect(page.locator("#error")).to_contain_text("max_tokens")
        assert [p for p in page.problems if "400" not in p] == []
