"""Verdicts on logits that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from trtspec.executor.request import Request
from trtspec.executor.sampler import Sampler
from trtspec.executor.verdict import Verdict
from trtspec.ops.tree import TokenTree


def judge(
    sampler: Sampler, requests: Sequence[Request], trees: Sequence[TokenTree], logits: Tensor
) -> list[Verdict]:
    """Of each request, in a step that verifies these trees; ``logits [R, V]`` are of all rows."""
    for request, tree in zip(requests, trees, strict=True):
        request.draft = tree
        sampler.begin(request)
    target: Any = SimpleNamespace(judges=False, forward=lambda groups: (logits, None))
    verdicts = sampler.launch(target, (), requests).read()
    return [verdicts[request.id] for request in requests]
