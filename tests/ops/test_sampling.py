from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from trtspec.ops.sampling import (
    draft_candidates,
    draft_candidates_reference,
    gumbel_noise,
    philox_reference,
    sample,
    sample_reference,
)

from .sampling_rows import Rows, random_logits

INSTRUCTION_SETS = ("generic", "avx2", "avx512")
REJECTED = 1e-6  # a correct sampler fails a chi-square test at this level once in a million seeds


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The torch reference runs many small operations, which threads only slow down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def instruction_set() -> Iterator[None]:
    """Restores the instruction set, and the number of threads, that a test changes."""
    before, threads = torch.ops.trtspec._get_isa(), torch.get_num_threads()
    yield
    torch.ops.trtspec._set_isa(before)
    torch.set_num_threads(threads)


# -- noise --------------------------------------------------------------------------------------

DIGITS_OF_PI = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (*DIGITS_OF_PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_philox_gives_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert philox_reference(torch.tensor(counter), torch.tensor(key)).tolist() == list(words)


@pytest.mark.parametrize("stream", [(0, 0, 0), (-1, 3, 17), (2**63 - 1, 2**31, 2**32 - 1)])
def test_native_noise_equals_the_reference(stream: tuple[int, int, int]) -> None:
    ids = torch.arange(40_000) * 1009
    native = torch.ops.trtspec._gumbel_noise(ids, *stream)
    expected = gumbel_noise(ids, *(torch.tensor(x) for x in stream))
    torch.testing.assert_close(native, expected, rtol=1e-14, atol=1e-14)


def test_noise_is_gumbel() -> None:
    noise = gumbel_noise(torch.arange(50_000), *torch.tensor([7, 0, 0]).unbind())
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > REJECTED
    assert stats.kstest(noise.numpy() * 1.05, "gumbel_r").pvalue < REJECTED


def test_noise_depends_on_every_part_of_its_key() -> None:
    one, zero = torch.tensor(1), torch.tensor(0)
    base = gumbel_noise(zero, zero, zero, zero)
    others = [
        gumbel_noise(one, zero, zero, zero),
        gumbel_noise(zero, one, zero, zero),
        gumbel_noise(zero, torch.tensor(2**32), zero, zero),
        gumbel_noise(zero, zero, one, zero),
        gumbel_noise(zero, zero, zero, one),
    ]
    assert len({float(x) for x in [base, *others]}) == 6


# -- native against reference ---------------------------------------------------------------------


def test_sample_equals_the_reference() -> None:
    generator = torch.Generator().manual_seed(1)
    for case in range(120):
        logits = random_logits(case, 4, generator)
        rows = Rows.random(4, generator)
        expected = sample_reference(logits, *rows.args())
        assert torch.equal(sample(logits, *rows.args()), expected), (case, rows)


@pytest.mark.parametrize("mapped", [False, True])
def test_draft_candidates_equal_the_reference(mapped: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    for case in range(80):
        logits = random_logits(case, 4, generator)
        rows = Rows.random(4, generator)
        k = (1, 2, 4, 8, 300)[case % 5]  # 300 is often more than there are survivors
        target_ids = torch.randperm(30_000, generator=generator)[: logits.shape[1]]
        token_map = target_ids if mapped else None
        ids, logprobs = draft_candidates(logits, *rows.args(), token_map, k)
        expected_ids, expected = draft_candidates_reference(logits, *rows.args(), token_map, k)
        assert torch.equal(ids, expected_ids), (case, rows)
        torch.testing.assert_close(logprobs, expected, rtol=1e-6, atol=1e-6)


def test_scores_that_nearly_tie_are_told_apart() -> None:
    """Logits that take the noise away again leave scores a float's last bits apart."""
    ids = torch.arange(5000)
    for seed in range(5):
        rows = Rows.same(1)
        rows.seed[:] = seed
        logits = -gumbel_noise(ids, *(x[:, None] for x in rows.args()[4:])).float()
        found, _ = draft_candidates(logits, *rows.args(), None, 40)
        expected, _ = draft_candidates_reference(logits, *rows.args(), None, 40)
        assert torch.equal(found, expected)


def test_large_vocabulary_equals_the_reference() -> None:
    """Many blocks, flat and peaked, wide filters: histogram buckets with many tokens."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 40_003, generator=generator)
    logits[2] = 0.25
    logits[3] *= 4
    logits[4] = (logits[4] * 4).round() / 4
    for top_k, top_p in [(0, 0.9), (0, 0.3), (30_000, 1.0), (20_000, 0.95), (50, 0.9)]:
        rows = Rows.same(5, 0.9, top_k, top_p)
        assert torch.equal(sample(logits, *rows.args()), sample_reference(logits, *rows.args()))
        ids, logprobs = draft_candidates(logits, *rows.args(), None, 8)
        expected_ids, expected = draft_candidates_reference(logits, *rows.args(), None, 8)
        assert torch.equal(ids, expected_ids)
        torch.testing.assert_close(logprobs, expected, rtol=1e-6, atol=1e-6)


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, [130, 131, 700]] = 1.0
    logits[0, 5] = -0.0
    assert sample(logits, *Rows.same(1, temperature=0.0).args()).tolist() == [130]
    ids, _ = draft_candidates(logits, *Rows.same(1, temperature=0.0).args(), None, 5)
    assert ids.tolist() == [[130, 131, 700, 0, 1]]
    # top_k keeps the lowest ids among equals, whatever their noise
    for seed in range(50):
        rows = Rows.same(1, top_k=2)
        rows.seed[:] = seed
        assert int(sample(logits, *rows.args())) in (130, 131)


def test_top_p_keeps_the_smallest_prefix() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]])).repeat(4000, 1)
    for top_p, kept in [(0.0, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.76, 3)]:
        ids = sample(logits, *Rows.same(4000, top_p=top_p).args())
        assert sorted(set(ids.tolist())) == list(range(kept))


def test_a_row_without_a_token_leaves_the_others_alone() -> None:
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(4))
    expected = sample(logits, *Rows.same(6).args())
    logits[1, 299] = float("nan")
    logits[2] = -float("inf")
    logits[4, 0] = float("inf")
    for temperature in (0.0, 1.0):
        rows = Rows.same(6, temperature)
        ids = sample(logits, *rows.args())
        assert ids[[1, 2, 4]].tolist() == [-1, -1, -1]
        assert bool((ids[[0, 3, 5]] >= 0).all())
        drafts, logprobs = draft_candidates(logits, *rows.args(), None, 2)
        assert drafts[[1, 2, 4]].tolist() == [[0, 0]] * 3
        assert bool(torch.isneginf(logprobs[[1, 2, 4]]).all())
    assert torch.equal(ids[[0, 3, 5]], expected[[0, 3, 5]])
    for temperature in (-1.0, float("nan"), float("inf")):
        assert sample(logits[:1], *Rows.same(1, temperature).args()).tolist() == [-1]


# -- invariance -----------------------------------------------------------------------------------


def test_a_row_alone_gives_the_same_bits_as_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    for vocab in (37, 4096, 70_000):
        logits = torch.randn(9, vocab, generator=generator)
        rows = Rows.random(9, generator)
        ids = sample(logits, *rows.args())
        drafts, logprobs = draft_candidates(logits, *rows.args(), None, 4)
        for r in range(9):
            one = slice(r, r + 1)
            assert torch.equal(sample(logits[one], *rows.at(one)), ids[one])
            draft, logprob = draft_candidates(logits[one], *rows.at(one), None, 4)
            assert torch.equal(draft, drafts[one])
            assert torch.equal(logprob, logprobs[one])


def test_threads_and_instruction_sets_give_the_same_bits(instruction_set: None) -> None:
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(3, 300_000, generator=generator) * 2
    rows = Rows.random(3, generator)
    rows.temperature[:] = torch.tensor([1.0, 0.8, 0.0])
    results = []
    for name in INSTRUCTION_SETS:
        torch.ops.trtspec._set_isa(name)
        for count in (1, 3):
            torch.set_num_threads(count)
            for part in (slice(0, 1), slice(1, 2), slice(0, 3)):
                results.append(
                    (
                        part,
                        sample(logits[part], *rows.at(part)),
                        *draft_candidates(logits[part], *rows.at(part), None, 5),
                    )
                )
    for part, ids, drafts, logprobs in results:
        _, all_ids, all_drafts, all_logprobs = results[2]
        assert torch.equal(ids, all_ids[part])
        assert torch.equal(drafts, all_drafts[part])
        assert torch.equal(logprobs, all_logprobs[part])


def test_the_best_candidate_is_the_sampled_token() -> None:
    """A draft with the target's own logits always guesses the target's token."""
    generator = torch.Generator().manual_seed(7)
    for case in range(40):
        logits = random_logits(case, 8, generator)[3:]
        rows = Rows.random(5, generator)
        rows.temperature.clamp_(min=0.01)
        ids, _ = draft_candidates(logits, *rows.args(), None, 1)
        assert torch.equal(ids[:, 0], sample(logits, *rows.args()))


# -- the law --------------------------------------------------------------------------------------

TOY_LOGITS = np.array(
    [1.2, 0.3, -0.5, 2.0, 0.0, -1.0, 1.1, 0.7, -2.0, 0.2, 1.6, -0.3, 0.9, -1.4, 0.5, -0.8]
)


def law(temperature: float, top_k: int, top_p: float) -> NDArray[np.float64]:
    """softmax after the filters, written independently of the module under test."""
    z = TOY_LOGITS / temperature
    p = np.exp(z) / np.exp(z).sum()
    order = np.argsort(-p)
    keep = order[: top_k or len(p)]
    share = np.cumsum(p[keep]) / p[keep].sum()
    keep = keep[: int(np.searchsorted(share, top_p)) + 1] if top_p < 1 else keep
    filtered = np.zeros_like(p)
    filtered[keep] = p[keep] / p[keep].sum()
    return filtered


def chi_square(tokens: Tensor, expected: NDArray[np.float64]) -> float:
    counts = np.bincount(tokens.numpy(), minlength=len(expected))
    if counts[expected == 0].sum() > 0:
        return 0.0
    used = expected > 0
    return float(stats.chisquare(counts[used], expected[used] * len(tokens)).pvalue)


def draw(count: int, over: str, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    rows = Rows.same(count, temperature, top_k, top_p)
    if over == "output_index":
        rows.seed[:] = 20_251
        rows.output_index = torch.arange(count)
    if over == "sample_index":
        rows.seed[:] = 20_251
        rows.sample_index = torch.arange(count)
    logits = torch.tensor(TOY_LOGITS, dtype=torch.float32).repeat(count, 1)
    return sample(logits, *rows.args())


@pytest.mark.parametrize("over", ["seed", "output_index", "sample_index"])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (0.7, 6, 1.0), (0.7, 0, 0.8), (0.7, 9, 0.7), (1.0, 12, 0.9)],
)
def test_sample_follows_softmax(over: str, temperature: float, top_k: int, top_p: float) -> None:
    tokens = draw(60_000, over, temperature, top_k, top_p)
    assert chi_square(tokens, law(temperature, top_k, top_p)) > REJECTED


def test_the_chi_square_test_rejects_wrong_samplers() -> None:
    """Negative controls: the same test must fail on a sampler that is a little wrong."""
    assert chi_square(draw(60_000, "seed", 0.95), law(1.0, 0, 1.0)) < REJECTED
    assert chi_square(draw(60_000, "seed", 0.7, 0, 1.0), law(0.7, 12, 1.0)) < REJECTED
    assert chi_square(draw(60_000, "seed", 0.7, 12, 1.0), law(0.7, 0, 1.0)) < REJECTED
    assert chi_square(draw(60_000, "seed", 0.7, 9, 1.0), law(0.7, 9, 0.7)) < REJECTED


def test_neighbouring_output_indices_are_independent() -> None:
    for over in ("output_index", "seed"):
        tokens = draw(80_000, over, 1.0, top_k=6).numpy()
        table = np.zeros((16, 16))
        np.add.at(table, (tokens[0::2], tokens[1::2]), 1)
        used = table.sum(axis=1) > 0
        assert stats.chi2_contingency(table[used][:, used]).pvalue > REJECTED
    # negative control: a token that repeats now and then
    repeated = np.where(np.arange(40_000) % 50 == 0, tokens[0::2], tokens[1::2])
    np.add.at(table := np.zeros((16, 16)), (tokens[0::2], repeated), 1)
    assert stats.chi2_contingency(table[used][:, used]).pvalue < REJECTED


def test_coupled_candidates_agree_more_often_than_greedy_ones() -> None:
    generator = torch.Generator().manual_seed(8)
    count = 20_000
    target = torch.randn(count, 32, generator=generator) * 2
    draft = target + torch.randn(count, 32, generator=generator) * 0.7
    rows = Rows.same(count)
    emitted = sample(target, *rows.args())
    coupled, logprobs = draft_candidates(draft, *rows.args(), None, 4)
    greedy, _ = draft_candidates(draft, *Rows.same(count, temperature=0.0).args(), None, 4)

    def agreement(ids: Tensor) -> float:
        return float((ids == emitted[:, None]).any(dim=1).float().mean())

    assert agreement(coupled[:, :1]) > agreement(greedy[:, :1]) + 0.05
    assert agreement(coupled) > agreement(greedy) + 0.05
    # A candidate's score is about the chance that the target takes it; the order shows it.
    hits = (coupled == emitted[:, None]).float().mean(dim=0)
    assert bool((hits[:-1] > hits[1:]).all())
    assert bool((logprobs.exp().sum(dim=1) <= 1 + 1e-5).all())


# -- the op as torch sees it ----------------------------------------------------------------------


class Rollout(torch.nn.Module):
    def forward(self, logits: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ids, logprobs = draft_candidates(logits, *rows, None, 3)  # type: ignore[call-arg,arg-type]
        return sample(logits, *rows), ids, logprobs


def test_export_with_dynamic_rows() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(9))
    rows = Rows.same(4)
    dynamic = torch.export.Dim("R", min=1, max=512)
    shapes = {"logits": {0: dynamic}, "rows": tuple({0: dynamic} for _ in fields(Rows))}
    program = torch.export.export(Rollout(), (logits, *rows.args()), dynamic_shapes=shapes)
    for count in (1, 2, 7):
        inputs = (logits[:1].repeat(count, 1), *Rows.same(count).args())
        for got, expected in zip(program.module()(*inputs), Rollout()(*inputs), strict=True):
            assert torch.equal(got, expected)


def test_wrong_arguments_are_named() -> None:
    logits, rows = torch.zeros(2, 8), Rows.same(2)
    with pytest.raises(RuntimeError, match="logits must be Float"):
        sample(logits.double(), *rows.args())
    with pytest.raises(RuntimeError, match="seed must have shape"):
        sample(logits, *rows.args()[:4], torch.zeros(3, dtype=torch.int64), *rows.args()[5:])
    with pytest.raises(RuntimeError, match="k must be at least 1"):
        draft_candidates(logits, *rows.args(), None, 0)
    with pytest.raises(RuntimeError, match="token_map must have shape"):
        draft_candidates(logits, *rows.args(), torch.arange(7), 1)


def test_no_rows() -> None:
    rows = Rows.same(0)
    assert sample(torch.zeros(0, 8), *rows.args()).shape == (0,)
    assert draft_candidates(torch.zeros(0, 8), *rows.args(), None, 3)[0].shape == (0, 3)
