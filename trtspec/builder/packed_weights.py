"""Reuses packed weights, and the measured cost of their quantisation, between builds.

Engines of one target differ in drafts, lengths and batch sizes, none of which affects the target's
packed weights or their accuracy. So later builds reuse the first one's work: the file is copied
from the engine that it was packed for, and the report lines are remembered.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path

import checkpoint_converters
from checkpoint_converters import content_of
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.families.registry import other_packages
from trtspec.backends.shape import TARGET, WEIGHTS_NAME
from trtspec.builder.digest_memory import DigestMemory
from trtspec.builder.locate import cache_root
from trtspec.builder.plan import BuildPlan
from trtspec.builder.remembered import file_facts, recall, remember
from trtspec.builder.sources import PACKAGE, code_in
from trtspec.builder.tokenizer import tokenizer_files
from trtspec.engine.engine_draft import EngineDraft

_LIMITS = ("max_batch_size", "max_seq_len", "max_num_tokens", "tokens_per_block", "kv_cache_dtype")
"""Fields of a build that no weight depends on; what a length changes in a target is in its
config."""
_SCHEME = "packed"


def packed_key(plan: BuildPlan, draft: EngineDraft | None = None) -> str:
    """A key over everything that determines how the weights of the target or a draft are packed,
    and how far they are from floats."""
    engine = plan.engine
    build = {k: v for k, v in asdict(engine.build).items() if k not in _LIMITS}
    folder = TARGET if draft is None else draft.folder
    facts: list[object] = [engine.fingerprints[folder], engine.target.to_dict(), build]
    facts += [engine.fingerprints.get("tokenizer"), engine.environment.facts, _code()]
    if plan.floats is not None:
        facts.append(hash_files(content_of(plan.floats), DigestMemory.of_user().digest))
    if draft is not None:
        facts += [
            v for k, v in sorted(draft.to_dict().items()) if k not in ("folder", "speculation")
        ]
        found = plan.drafts[engine.drafts.index(draft)]
        facts.append(hash_files(tokenizer_files(found.path)))
    text = json.dumps(facts, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def recall_lines(key: str) -> list[str] | None:
    """The remembered quantisation report for this key; None: there is none."""
    known = recall(_place("rounding", key), key)
    if known is None:
        return None
    lines: list[str] = json.loads(known)
    return lines


def remember_lines(key: str, lines: list[str]) -> None:
    """Store lines for `recall_lines`."""
    with suppress(OSError):
        remember(_place("rounding", key), key, json.dumps(lines))


def copy_packed(key: str, file: Path) -> Path | None:
    """Copy the target's weights that were packed under this key to ``file``. Returns the engine
    folder that they came from; None if there are none, or they have changed since."""
    known = recall(_place(_SCHEME, key), key)
    if known is None:
        return None
    facts: str = json.loads(known)
    source = Path(json.loads(facts)[1])
    try:
        if file_facts(_SCHEME, source) != facts:
            return None
        shutil.copyfile(source, file)
        return source.parent.parent if file_facts(_SCHEME, source) == facts else None
    except OSError:
        file.unlink(missing_ok=True)
        return None


def remember_packed(key: str, engine: Path) -> None:
    """Record that an engine folder holds the target's weights for this key."""
    with suppress(OSError):
        facts = file_facts(_SCHEME, engine / TARGET / WEIGHTS_NAME)
        remember(_place(_SCHEME, key), key, json.dumps(facts))


def _place(kind: str, key: str) -> Path:
    return cache_root() / kind / key


@cache
def _code() -> list[str]:
    """The code that packs weights and reads them from checkpoints."""
    converters = Path(checkpoint_converters.__path__[0])
    return [code_in(PACKAGE), code_in(converters), str(other_packages())]
