"""Check: one finding, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"


@dataclass(frozen=True)
class Check:
    """status: ok; note (something optional is missing); warning (it works, but slowly or not as
    intended); problem (it will not work). remedy: what to change, "" for nothing."""

    name: str
    status: str
    detail: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain JSON values."""
        return asdict(self)


def has_problem(checks: Sequence[Check]) -> bool:
    return any(check.status == PROBLEM for check in checks)


def describe(checks: Sequence[Check]) -> str:
    """One line per check, and another for what to change."""
    wide = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{wide}}  {check.detail}")
        if check.remedy:
            lines.append(f"{'':<8} {'':<{wide}}  -> {check.remedy}")
    return "\n".join(lines)
