"""Suffix decoding as it is defined: tries with one node a token, and no cleverness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .suffix_trees import SuffixDraft, SuffixOptions


@dataclass(eq=False)
class Node:
    """children: in order of falling count; one whose count changes becomes the first of its new
    count."""

    token: int = -1
    count: int = 0
    children: list[Node] = field(default_factory=list)

    def child(self, token: int) -> Node | None:
        return next((c for c in self.children if c.token == token), None)

    def change(self, token: int, by: int) -> None:
        child = self.child(token) or Node(token)
        self.children = [c for c in self.children if c is not child]
        child.count += by
        if child.count:
            place = sum(c.count > child.count for c in self.children)
            self.children.insert(place, child)


class PlainTree:
    """Every window text[s : s + depth] of every text."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = Node()
        self.texts: dict[int, list[int]] = {}

    def append(self, key: int, tokens: Sequence[int]) -> None:
        text = self.texts.setdefault(key, [])
        for token in tokens:
            self.root.count += 1
            for start in range(len(text), max(len(text) - self.depth, -1), -1):
                node = self.find(text[start:])
                assert node is not None
                node.change(token, 1)
            text.append(token)

    def remove(self, key: int) -> None:
        text = self.texts.pop(key)
        for start in range(len(text)):
            self.root.count -= 1
            node: Node | None = self.root
            for token in text[start : start + self.depth]:
                if node is None:
                    break
                node.change(token, -1)
                node = node.child(token)

    def find(self, string: Sequence[int]) -> Node | None:
        node: Node | None = self.root
        for token in string:
            node = node.child(token) if node else None
        return node

    def count(self, string: Sequence[int]) -> int:
        node = self.find(string)
        return node.count if node else 0

    def speculate(
        self, context: Sequence[int], max_tokens: int, options: SuffixOptions
    ) -> SuffixDraft:
        context = context[-self.depth :]
        best = SuffixDraft([], [], [])
        for m in range(1, len(context)):
            node = self.find(context[-m:])
            if node is None:
                break
            k = max(0, min(max_tokens, int(options.factor * m + options.offset + 1e-6)))
            draft = (_tree if options.tree else _path)(node, k, options.min_prob, m)
            if draft.score >= best.score:
                best = draft
        return best


def _path(node: Node, k: int, min_prob: float, m: int) -> SuffixDraft:
    tokens: list[int] = []
    probs: list[float] = []
    p = 1.0
    while len(tokens) < k and node.children:
        child = node.children[0]
        p *= child.count / node.count
        if p < min_prob:
            break
        tokens.append(child.token)
        probs.append(p)
        node = child
    return SuffixDraft(tokens, list(range(-1, len(tokens) - 1)), probs, _total(probs), m)


def _tree(node: Node, k: int, min_prob: float, m: int) -> SuffixDraft:
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    seen: list[tuple[float, int, Node]] = []  # in the order of discovery
    p, index = 1.0, -1
    while len(tokens) < k:
        for child in node.children:
            q = p * (child.count / node.count)
            if q >= min_prob:
                seen.append((q, index, child))
        if not seen:
            break
        best = max(range(len(seen)), key=lambda i: seen[i][0])  # the first of equals
        p, parent, node = seen.pop(best)
        index = len(tokens)
        tokens.append(node.token)
        parents.append(parent)
        probs.append(p)
    return SuffixDraft(tokens, parents, probs, _total(probs), m)


def _total(probs: Sequence[float]) -> float:
    """One after the other, as the tree adds them (`sum` of Python 3.12 compensates)."""
    total = 0.0
    for p in probs:
        total += p
    return total


class PlainCache:
    """A local tree for each active request, and one of all responses with FIFO eviction."""

    def __init__(self, depth: int, max_requests: int, max_tokens: int) -> None:
        self.depth, self.max_requests, self.max_tokens = depth, max_requests, max_tokens
        self.pooled = PlainTree(depth)
        self.active: dict[int, list[int]] = {}  # prompt and response
        self.responses: dict[int, int] = {}  # tokens of the response
        self.order: list[int] = []  # cached requests, the oldest first

    def start(self, request: int) -> None:
        self.active[request], self.responses[request] = [], 0
        if self.max_requests != 0 and request not in self.order:
            self.order.append(request)
            self.pooled.texts[request] = []
            if self.max_requests > 0:
                self._evict_while(request, lambda: len(self.order) > self.max_requests)

    def append_prompt(self, request: int, tokens: Sequence[int]) -> None:
        self.active[request] += tokens

    def append_response(self, request: int, tokens: Sequence[int]) -> None:
        self.active[request] += tokens
        begin = self.responses[request]
        self.responses[request] += len(tokens)
        known = len(self.pooled.texts.get(request, ()))
        if request in self.order and known < self.responses[request]:
            self.pooled.append(request, tokens[max(known - begin, 0) :])
            self._evict_while(
                request, lambda: sum(map(len, self.pooled.texts.values())) > self.max_tokens
            )

    def _evict_while(self, request: int, too_much: object) -> None:
        others = [r for r in self.order if r != request]
        while too_much() and others:  # type: ignore[operator]
            self.evict(others.pop(0))

    def evict(self, request: int) -> bool:
        if request not in self.order:
            return False
        self.order.remove(request)
        self.pooled.remove(request)
        return True

    def stop(self, request: int) -> None:
        if self.active.pop(request, None) is not None and not self.pooled.texts.get(request):
            self.evict(request)

    def speculate(self, request: int, max_tokens: int, options: SuffixOptions) -> SuffixDraft:
        text = self.active[request]
        own = PlainTree(self.depth)
        own.append(0, text)
        local = own.speculate(text, max_tokens, options)
        if not self.order:
            return local
        pooled = self.pooled.speculate(text, max_tokens, options)
        return local if local.score >= pooled.score else pooled
