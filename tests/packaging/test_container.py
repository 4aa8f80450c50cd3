"""The files of `container/`, read as they cannot be run here: what they promise of the server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trtspec.serve.settings import ServeSettings

FOLDER = Path(__file__).resolve().parents[2] / "container"


@pytest.fixture
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return read


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image(name: str) -> None:
    """Signals reach the server itself, which is no root, and all that it writes is in the volume;
    what was installed is of this folder's files."""
    text = re.sub(r"\\\n", " ", (FOLDER / name).read_text())
    last = text[text.rindex("\nFROM ") :]
    said = dict(re.findall(r"^(\w+) (.*)$", last, flags=re.MULTILINE))
    assert int(said["USER"]) > 0 and said["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(said["ENTRYPOINT"])[0] == "trtspec-serve"
    assert "/health" in said["HEALTHCHECK"]
    set_to = dict(word.split("=", 1) for word in said["ENV"].split())
    for variable in ("TRTSPEC_CACHE_DIR", "HF_HOME", "TMPDIR"):
        assert set_to[variable].startswith(said["VOLUME"])
    assert "pip install --no-cache-dir '/source[serve" in text


def test_compose(compose: dict[str, Any]) -> None:
    services = compose["services"]
    server = services["server"]
    assert server["read_only"] and "cache:/cache" in server["volumes"]
    assert (FOLDER / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    drains = ServeSettings(("model",))
    grace = float(server["stop_grace_period"].removesuffix("s"))
    assert grace > drains.drain_seconds + drains.drain_timeout
    mounted = [each for name in ("prometheus", "grafana") for each in services[name]["volumes"]]
    assert all((FOLDER / each.split(":")[0]).exists() for each in mounted)


def test_prometheus_scrapes_the_server(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = scraped[0]["static_configs"][0]["targets"]
    name, port = target.split(":")
    assert name in compose["services"]
    assert f"EXPOSE {port}\n" in (FOLDER / "Dockerfile").read_text()
