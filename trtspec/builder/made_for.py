"""The target that a draft was trained for, as training records it with the draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError

MADE_FOR = "made_for.json"


def facts_of(name: str, fingerprint: str) -> Mapping[str, Any]:
    """The facts about a target that `MADE_FOR` records."""
    return {"target": name, "fingerprint": fingerprint}


def made_for_another(draft: Path, fingerprint: str) -> tuple[str, ...]:
    """A doubt if the draft's folder says that it was trained for a target with another fingerprint;
    not an error, since a quantised copy of its target has another fingerprint too. Most drafts do
    not say what they were trained for.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = draft / MADE_FOR
    if not path.is_file():
        return ()
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        name, trained = facts["target"], facts["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} does not say a target and its fingerprint ({error!r}); remove it, or get the "
            "draft again"
        ) from error
    if trained == fingerprint:
        return ()
    return (
        f"the draft was trained for {name} (fingerprint {trained}), this target's is "
        f"{fingerprint}: the text stays the same, but drafts may be accepted seldom; "
        "trtspec-doctor says how often",
    )
