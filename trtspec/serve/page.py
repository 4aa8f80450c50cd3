"""The start page, a single file without external resources, and headers that enforce this."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.responses import Response

import trtspec

_FILE = Path(trtspec.__file__).parent / "assets" / "start-page" / "index.html"


@cache
def _content() -> tuple[str, str]:
    """The page, and a policy that allows exactly its own script and style."""
    page = _FILE.read_text(encoding="utf-8")
    sources = []
    for tag in ("script", "style"):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert found, f"the page has no {tag}"
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        sources.append(f"{tag}-src 'sha256-{digest}'")
    rest = "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'"
    icon = "img-src data:"  # an empty one, so that browsers ask for none
    return page, "; ".join([rest, icon, "frame-ancestors 'none'", *sources])


def page_response() -> Response:
    page, policy = _content()
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return Response(page, headers=headers, media_type="text/html")
