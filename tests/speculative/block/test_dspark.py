"""DSpark networks against the paper's equations, path by path."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.config.tree import TreeShape
from trtspec.errors import ConfigError
from trtspec.speculative.block.drafter import without_unlikely
from trtspec.speculative.block.dspark import DSparkConfig, DSparkDecodingConfig, DSparkDraft
from trtspec.speculative.options import parse_speculative_config

from .dflash_reference import DenseDFlash, H, V, block
from .path_trees import (
    ROOT,
    SAMPLING,
    SHAPES,
    STATES,
    Logits,
    assert_same_tree,
    expected,
    loaded,
    rolled_out,
)

R = 5
HEADS = {"confidence": True, "confidence_reads_token": True}
CASES = {
    "vanilla": {"markov_rank": R},
    "gated": {"markov_rank": R, "markov_head": "gated"},
    "rnn": {"markov_rank": R, "markov_head": "rnn"},
    "rnn, sure": {"markov_rank": R, "markov_head": "rnn", **HEADS},
    "sure": {"markov_rank": R, **HEADS},
    "sure of slots": {"confidence": True},
    "own tokens": {
        **{"markov_rank": R, **HEADS, "draft_vocab_size": 20},
        **{"own_head": True, "own_embedding": True},
    },
    "behind the root": {"markov_rank": R, "anchor_predicts": False},
}


def shape_of(case: str) -> DSparkConfig:
    return block(DSparkConfig, **{"anchor_predicts": True, **CASES[case]})


def heads(config: DSparkConfig) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(8)
    shapes = config.own_parts
    if config.markov_rank:
        shapes["markov_head.weight"] = (config.draft_vocab_size, config.markov_rank)
    return {name: torch.randn(shape, generator=noise) for name, shape in shapes.items()}


def by_the_paper(config: DSparkConfig, dense: DenseDFlash, states: Tensor) -> Logits:
    """Equations of section 3: the bias of a slot, from the token before it and what was before."""
    t, first = dense.tensors, int(not config.anchor_predicts)
    rows = dense.rows(states, ROOT)[first:]
    base = dense.of_rows(rows)

    def logits(path: tuple[int, ...]) -> tuple[Tensor, float | None]:
        before = (ROOT, *path)
        depth = len(path)
        bias, state = torch.zeros_like(base[0]), torch.zeros(R)
        if config.markov_rank:
            for k, token in enumerate(before):
                embedded = t["markov.w1"][token]
                latent = embedded
                if config.markov_head == "gated":
                    both = torch.cat((rows[k], embedded))
                    gate = torch.sigmoid(t["markov.mix"] @ both + t["markov.mix_bias"])
                    latent = gate * embedded
                elif config.markov_head == "rnn":
                    joint = t["markov.mix"] @ torch.cat((state, embedded, rows[k]))
                    g, c, o = (joint + t["markov.mix_bias"]).split(R)
                    state = torch.sigmoid(g) * state + (1 - torch.sigmoid(g)) * torch.tanh(c)
                    latent = torch.tanh(o)
                bias = t["markov_head.weight"] @ latent
        sure = None
        if config.confidence:
            read = rows[depth]
            if config.confidence_reads_token:
                read = torch.cat((read, t["markov.w1"][before[-1]]))
            logit = F.linear(read, t["confidence.weight"], t["confidence.bias"])
            sure = float(torch.sigmoid(logit))
        return base[depth] + bias, sure

    return logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_rollouts(case: str, shape: str) -> None:
    config = shape_of(case)
    draft, dense = loaded(DSparkDraft, config, heads(config))
    noise = torch.Generator().manual_seed(3)
    states = 2 * torch.randn(STATES, config.hidden_in, generator=noise)
    for request in range(len(SAMPLING)):
        found = rolled_out(draft, SHAPES[shape], states, request)
        paper = by_the_paper(config, dense, states)
        nodes = expected(paper, SHAPES[shape], request, draft.token_map)
        # What a nearly certain child leaves to its siblings has few digits.
        assert_same_tree(nodes, found, 2e-2 if config.confidence else 2e-4)
        assert (found[2] <= 0).all()


def test_a_path_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of nodes of one depth differ; without the bias they are the same."""
    config = shape_of("vanilla")
    draft, _ = loaded(DSparkDraft, config, {n: 3 * x for n, x in heads(config).items()})
    states, shape = (
        torch.randn(STATES, config.hidden_in),
        TreeShape.static([[0], [1], [0, 0], [1, 0], [0, 1], [1, 1]]),
    )
    tokens = rolled_out(draft, shape, states, 0)[0].tolist()
    assert set(tokens[2:4]) != set(tokens[4:])
    monkeypatch.setattr(DSparkDraft, "bias", lambda self, latent: latent.new_zeros(len(latent), V))
    tokens = rolled_out(draft, shape, states, 0)[0].tolist()
    assert tokens[2:4] == tokens[4:]


def test_configs() -> None:
    for case in CASES:
        config = shape_of(case)
        assert DSparkConfig.from_dict(config.to_dict()) == config
    for changes, message in (
        ({"markov_rank": -1}, "markov_rank=-1 must not be negative"),
        ({"markov_head": "lstm"}, "markov_head='lstm' is not one of"),
        ({"confidence_reads_token": True}, "needs a confidence head and markov_rank above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(shape_of("vanilla"), **changes)
    parts = shape_of("rnn, sure").own_parts
    assert parts["markov.mix"] == (3 * R, 2 * R + H) and parts["confidence.weight"] == (1, H + R)


def test_unlikely_nodes_are_left_out() -> None:
    """With what is behind them, however likely that is behind them."""
    parents = torch.tensor([[-1, -1, 0, 1, 3]], dtype=torch.int32)
    gains = torch.tensor([0.9, 0.4, 0.3, 0.9, 0.9]).log()
    scores = torch.stack([gains[0], gains[1], gains[0] + gains[2], gains[1] + gains[3]])
    scores = torch.cat((scores, scores[3:] + gains[4]))[None]
    kept = without_unlikely(parents, scores, 0.5)
    assert kept[0].isfinite().tolist() == [True, False, False, False, False]
    kept = without_unlikely(parents, scores, 0.35)
    assert kept[0].isfinite().tolist() == [True, True, False, True, True]
    assert torch.equal(kept[0, :2], scores[0, :2]) and kept[0, 2] == -math.inf


def test_options() -> None:
    """In the words of DeepSpec, SGLang and vLLM: a block of 7 rows drafts 7 tokens."""
    for given in (
        {"block_size": 7},
        {"speculative_dspark_block_size": 7},
        {"num_speculative_tokens": 7, "confidence_threshold": 0.2},
    ):
        config = parse_speculative_config({"method": "DSpark", "model": "d", **given})
        assert isinstance(config, DSparkDecodingConfig)
        assert config.tree == TreeShape(1, 7, 8)
        assert config.least_probability == given.get("confidence_threshold", 0)
    with pytest.raises(ConfigError, match=r"confidence_threshold=1\.0 must be at least 0 and"):
        DSparkDecodingConfig(model="d", block_size=7, confidence_threshold=1.0)  # type: ignore
    with pytest.raises(ConfigError, match="all tokens are scored; leave it out"):
        DSparkDecodingConfig(model="d", block_size=7, dspark_draft_topk=4)  # type: ignore
