"""Numbers that Python and C++ must agree on."""

from __future__ import annotations

import re
from pathlib import Path

from trtspec.engine.folder import FORMAT_VERSION
from trtspec.ops import OPS_VERSION

INCLUDE = Path(__file__).resolve().parents[2] / "cpp" / "include" / "trtspec"


def constant(header: str, name: str) -> int:
    found = re.findall(
        rf"^constexpr std::int64_t {name} = (\d+);$", (INCLUDE / header).read_text(), re.M
    )
    assert len(found) == 1
    return int(found[0])


def test_versions() -> None:
    assert constant("ops_version.hpp", "kOpsVersion") == OPS_VERSION
    assert constant("runtime/engine_folder.hpp", "kEngineFormatVersion") == FORMAT_VERSION
