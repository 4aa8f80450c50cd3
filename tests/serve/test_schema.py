"""Requests made up from the server's own OpenAPI schema, valid and malformed: none breaks it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from .conftest import DEADLINE, Server

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis (extra test)")
generation = pytest.importorskip("schemathesis.generation")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_request_is_answered_with_a_fault(server: Server, mode: str) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    paths = {operation.path for operation in operations}
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= paths
    answers: dict[str, set[int]] = {}
    for operation in operations:
        if mode == "NEGATIVE" and operation.method.upper() == "GET":
            continue  # takes nothing that could be wrong

        @given(case=operation.as_strategy(generation_mode=generation.GenerationMode[mode]))
        @settings(
            max_examples=40, deadline=None, derandomize=True, suppress_health_check=HealthCheck
        )
        def asked(case: Any) -> None:
            response = case.call(timeout=DEADLINE)
            assert response.status_code < 500, response.text
            answers.setdefault(case.path, set()).add(response.status_code)
            if response.status_code >= 400 and case.path.startswith("/v1/"):
                assert response.json()["error"]["message"]

        asked()
    assert server.get("/health").status_code == 200
    if mode == "NEGATIVE":
        assert all(400 in codes for codes in answers.values()), answers
