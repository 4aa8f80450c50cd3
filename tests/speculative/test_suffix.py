"""SuffixDrafter: drafts within their limits, and what the cache keeps of a request's life."""

from __future__ import annotations

from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.tree import TokenTree
from trtspec.speculative.suffix.drafter import SuffixDrafter
from trtspec.speculative.suffix.options import SuffixDecodingConfig

TEXT = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]


def make_drafter(**options: Any) -> SuffixDrafter:
    return SuffixDrafter(SuffixDecodingConfig(**{"suffix_decoding_tree": False, **options}))


def make_request(id: int, tokens: list[int], max_tokens: int = 50, **options: Any) -> Request:
    params = SamplingParams(max_tokens=max_tokens, **options)
    return Request.create(id, tokens, params, seed=0, max_seq_len=1000, eos_token_ids=(9,))


def generation(request: Request, max_nodes: int = 30) -> ScheduledRequest:
    return ScheduledRequest(request, len(request.tokens) - 1, 1, True, max_nodes, True)


def draft_tree(drafter: SuffixDrafter, request: Request, max_nodes: int = 30) -> TokenTree:
    (tree,) = drafter.prepare_draft_tokens(StepPlan((generation(request, max_nodes),)))
    return tree


def draft(drafter: SuffixDrafter, request: Request, max_nodes: int = 30) -> list[int]:
    return draft_tree(drafter, request, max_nodes).tokens.tolist()


def emit(drafter: SuffixDrafter, request: Request, tokens: list[int]) -> None:
    """A step that accepted `tokens`."""
    item = generation(request)
    request.tokens.extend(tokens)
    assert drafter.on_accepted(StepPlan((item,)), StepResult.of([tokens])) == [()]


def test_needs() -> None:
    def needs(**options: Any) -> tuple[int, int]:
        found = make_drafter(**options).needs
        assert not found.caches and not found.reads_hidden
        return found.max_nodes, found.max_depth

    assert needs() == (23, 23)  # a match takes one token of the depth at least
    assert needs(max_draft_len=5) == (5, 5)
    assert needs(max_draft_len=40, suffix_decoding_max_spec_factor=2.0) == (40, 23)
    assert needs(suffix_decoding_max_spec_factor=0.25) == (5, 5)
    assert needs(suffix_decoding_max_spec_factor=0.0) == (0, 0)


def test_drafts_keep_their_limits() -> None:
    drafter = make_drafter(max_draft_len=6, suffix_decoding_max_spec_factor=4.0)
    free, cut = make_request(0, TEXT), make_request(1, TEXT)
    requests = [
        free,
        cut,
        make_request(2, TEXT, max_tokens=3),
        make_request(3, TEXT, max_tokens=1),
        make_request(4, [1, 2, 3]),
        make_request(5, [1, 2, 3, 4, 9, 6, 1, 2, 3]),
        make_request(6, TEXT, stop_token_ids=(5,)),
    ]
    limits = {free: 30, cut: 2}
    prefill = make_request(7, TEXT)
    items = [generation(request, limits.get(request, 30)) for request in requests]
    items.append(ScheduledRequest(prefill, 0, 4, False, 0, False))
    batch = StepPlan(tuple(items))
    drafts = drafter.prepare_draft_tokens(batch)
    assert [tree.tokens.tolist() for tree in drafts] == [
        [4, 5, 6, 7, 1, 2], [4, 5], [4, 5], [], [], [4], [4], []
    ]  # fmt: skip
    assert all(tree == TokenTree.chain(tree.tokens) for tree in drafts)


def test_the_length_follows_the_match() -> None:
    drafter = make_drafter()
    request = make_request(0, [1, 2, 3, 4, 5, 6, 7, 1])
    assert draft(drafter, request) == [2]
    emit(drafter, request, [2, 3])
    assert draft(drafter, request) == [4, 5, 6]
    emit(drafter, request, [8])
    assert draft(drafter, request) == []


def test_a_tree_has_both_ways_on() -> None:
    drafter = make_drafter(suffix_decoding_tree=True, suffix_decoding_max_spec_factor=2.0)
    text = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    request = make_request(0, text, max_tokens=3)
    tree = draft_tree(drafter, request)
    assert sorted(tree.tokens.tolist()) == [3, 4, 5, 6]
    assert tree.max_depth == 2
    paths = {tree.path_tokens(node) for node in range(len(tree))}
    assert paths == {(3,), (5,), (3, 4), (5, 6)}
    short = make_request(1, text, max_tokens=2)
    assert sorted(draft(drafter, short)) == [3, 5], "one token beside the bonus"


def test_prompt_chunks_are_taken_in() -> None:
    drafter = make_drafter()
    request = make_request(0, TEXT)
    chunk = ScheduledRequest(request, 0, 6, False, 0, False)
    drafter.on_accepted(StepPlan((chunk,)), StepResult.of([()]))
    rest = ScheduledRequest(request, 6, 4, False, 0, True)
    request.tokens.extend([4])
    drafter.on_accepted(StepPlan((rest,)), StepResult.of([(4,)]))
    sizes = drafter.sizes
    assert (sizes.num_active, sizes.num_cached, sizes.num_cached_tokens) == (1, 1, 1)
    assert draft(drafter, request) == [5, 6, 7, 1]


# An abort looks the same to a drafter as an end or a preemption: the request is released.
def finished(drafter: SuffixDrafter, id: int, response: list[int]) -> None:
    request = make_request(id, [20 + id])
    emit(drafter, request, response)
    drafter.release(id)


def test_responses_serve_later_requests() -> None:
    drafter = make_drafter()
    finished(drafter, 0, [1, 2, 3, 4, 5, 6])
    other = make_request(1, [8, 1, 2])
    assert draft(drafter, other) == [3, 4], "a response that another request has had"
    prompt_only = make_request(2, [30, 31, 32, 33])
    draft(drafter, prompt_only)
    assert draft(drafter, make_request(3, [30, 31, 32])) == [], "prompts are not shared"
    private = make_drafter(suffix_decoding_max_cached_requests=0)
    finished(private, 0, [1, 2, 3, 4])
    assert draft(private, make_request(1, [8, 1, 2])) == []
    assert private.sizes.num_cached == 0


def test_the_oldest_response_goes_first() -> None:
    drafter = make_drafter(suffix_decoding_max_cached_requests=3)
    for id in range(3):
        finished(drafter, id, [10 * id + i for i in range(1, 7)])
    assert draft(drafter, make_request(7, [0, 1, 2])) == [], "it has taken the place of request 0"
    assert draft(drafter, make_request(8, [0, 21, 22])) == [23, 24]
    assert drafter.sizes.num_cached_tokens == 6
    by_tokens = make_drafter(suffix_decoding_max_cached_tokens=10)
    for id in range(5):
        finished(by_tokens, id, [10 * id + i for i in range(1, 7)])
    assert by_tokens.sizes.num_cached_tokens == 6


def test_a_preempted_request_keeps_its_response() -> None:
    drafter = make_drafter()
    request = make_request(0, [1, 2, 3])
    emit(drafter, request, [4, 5, 6, 4, 5])
    before = draft(drafter, request)
    assert before == [6, 4]
    drafter.release(request.id)
    sizes = drafter.sizes
    assert (sizes.num_active, sizes.num_cached, sizes.num_cached_tokens) == (0, 1, 5)
    # Meanwhile it serves others; then it is prefilled again, its output included.
    assert draft(drafter, make_request(1, [0, 4, 5])) == [6, 4]
    again = ScheduledRequest(request, 0, 8, False, 0, True)
    request.tokens.extend([6])
    drafter.on_accepted(StepPlan((again,)), StepResult.of([(6,)]))
    assert drafter.sizes.num_cached_tokens == 6, "the response is not counted twice"
    emit(drafter, request, [4, 5])
    found = draft(drafter, request)
    assert found == [6, 4, 5, 6, 4][: len(found)] and len(found) >= 3


def test_release_of_unknown_requests() -> None:
    drafter = make_drafter()
    drafter.release(99)
    request = make_request(0, TEXT)
    drafter.prepare_draft_tokens(StepPlan((generation(request, 0),)))
    drafter.release(0)
    assert drafter.sizes.num_active == 0
