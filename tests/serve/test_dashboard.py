"""The Grafana dashboard of `container/` shows what the server says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from .conftest import Server

DASHBOARD = Path(__file__).resolve().parents[2] / "container" / "grafana" / "trtspec.json"


def test_its_metrics_are_those_of_the_server(server: Server) -> None:
    assert server.post(json={"model": "tiny", "prompt": "the", "max_tokens": 4}).status_code == 200
    endings = {"counter": "_total", "histogram": "_bucket"}
    families = text_string_to_metric_families(server.get("/metrics").text)
    offered = {family.name + endings.get(family.type, "") for family in families}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    names = {name for each in expressions for name in re.findall(r"trtspec:\w+", each)}
    assert names and names <= offered
    shown = " ".join(panel["title"] for panel in panels)
    assert all(word in shown for word in ("Acceptance", "Tokens per second", "Queue"))
