"""Routers choose as transformers' do, ties and groups included; all formats mix experts alike."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeTopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.storage import WeightStorage
from trtspec.formats import plain
from trtspec.formats.base import ExpertLayers, Mixture, WeightFormat
from trtspec.formats.plain import PANELS, ROWS
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.registry import floats_beside
from trtspec.formats.stored import StoredWeight
from trtspec.models.feed_forwards.experts import Router
from trtspec.ops.linear import pack_linear
from trtspec.ops.moe import Gating

HIDDEN, EXPERTS = 32, 12
SPEC = ExpertsSpec(EXPERTS, 4, 8)
THEIRS = SimpleNamespace(
    num_experts_per_tok=4,
    num_local_experts=EXPERTS,
    num_experts=EXPERTS,
    hidden_size=HIDDEN,
    routed_scaling_factor=1.7,
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    topk_method="group_limited_greedy",
)
SCALED = replace(SPEC, normalised=False, weight_scale=1.7)
SIGMOID = replace(SPEC, router="sigmoid", choice_bias=True, weight_scale=1.7)
ROUTERS: dict[str, tuple[ExpertsSpec, Any, dict[str, Any]]] = {
    "softmax": (SPEC, MixtralTopKRouter, {}),
    "softmax, not normalised": (
        replace(SPEC, normalised=False),
        Qwen2MoeTopKRouter,
        {"norm_topk_prob": False},
    ),
    "softmax, Qwen3": (SPEC, Qwen3MoeTopKRouter, {}),
    "softmax, DeepSeek-V2": (SCALED, DeepseekV2TopkRouter, {"topk_method": "greedy"}),
    "softmax in groups": (
        replace(SCALED, num_groups=4, top_groups=2),
        DeepseekV2TopkRouter,
        {},
    ),
    "softmax of the chosen, without a bias": (
        replace(SPEC, router="softmax_of_chosen"),
        GraniteMoeTopKRouter,
        {},
    ),
    "softmax of the chosen": (
        replace(SPEC, router="softmax_of_chosen", router_bias=True),
        GptOssTopKRouter,
        {},
    ),
    "sigmoid": (SIGMOID, Glm4MoeTopkRouter, {"n_group": 1, "topk_group": 1}),
    "sigmoid, not normalised": (
        replace(SIGMOID, normalised=False),
        Glm4MoeTopkRouter,
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "sigmoid in groups": (replace(SIGMOID, num_groups=4, top_groups=2), Glm4MoeTopkRouter, {}),
    "sigmoid in groups, DeepSeek-V3": (
        replace(SIGMOID, num_groups=4, top_groups=2),
        DeepseekV3TopkRouter,
        {},
    ),
}


def whole(*shape: int, seed: int, most: int = 1) -> Tensor:
    """Small whole numbers: sums of products are exact in any order, and scores tie."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).float()


@pytest.mark.parametrize("name", ROUTERS)
def test_routers_choose_as_those_of_transformers(name: str) -> None:
    spec, kind, fields = ROUTERS[name]
    router, theirs = (
        Router(spec, HIDDEN, torch.float32, PANELS),
        kind(SimpleNamespace(**{**vars(THEIRS), **fields})),
    )
    weight, bias = whole(EXPERTS, HIDDEN, seed=1) / 8, whole(EXPERTS, seed=2)
    bias = bias / (1 if spec.router_bias else 4)
    router.scores.weights["packed"].copy_(pack_linear(weight))
    theirs.weight = nn.Parameter(weight)
    if spec.router_bias:
        assert router.scores.bias is not None
        router.scores.bias.copy_(bias)
        theirs.bias = nn.Parameter(bias)
    if router.choice_bias is not None:
        router.choice_bias.copy_(bias)
        theirs.e_score_correction_bias = nn.Buffer(bias)
    x = whole(300, HIDDEN, seed=3)
    with torch.no_grad():
        logits, want, experts = theirs(x)
    chosen, weights = router(x)
    ties = sum(len(set(row.tolist())) < EXPERTS for row in logits)
    assert ties > 200
    order = chosen.argsort(dim=1), experts.argsort(dim=1)
    assert torch.equal(chosen.gather(1, order[0]), experts.gather(1, order[1]))
    torch.testing.assert_close(weights.gather(1, order[0]), want.gather(1, order[1]))
    for rows in (slice(0, 1), slice(7, 10)):
        again = router(x[rows])
        assert torch.equal(again[0], chosen[rows]) and torch.equal(again[1], weights[rows])


def test_groups_count_their_best_score_behind_a_softmax() -> None:
    """DeepSeek-V2's choice: the sum of two would take another group."""
    spec = replace(SPEC, top_k=2, num_groups=3, top_groups=1)
    router = Router(spec, HIDDEN, torch.float32, PANELS)
    scores = torch.zeros(EXPERTS, HIDDEN)
    scores[:, 0] = torch.tensor([5.0, 0, 0, 0, 4.9, 4.9, 0, 0, 0, 0, 0, 0])
    router.scores.weights["packed"].copy_(pack_linear(scores))
    x = torch.zeros(1, HIDDEN)
    x[0, 0] = 1
    assert int(router(x)[0][0, 0]) == 0
    router.spec = replace(spec, router="sigmoid")
    assert set(router(x)[0][0].tolist()) == {4, 5}


class NoWay(plain.RowFormat):
    """A format that only multiplies."""

    mixture = WeightFormat.mixture


INNER = 40
FORMATS = {
    "panels": PANELS,
    "rows": ROWS,
    "by products": NoWay(),
    "int8": QuantisedFormat(WeightStorage(8, 32), input_bits=0),
}


def mixture(format: WeightFormat, gating: Gating) -> Mixture:
    def layers(outputs: int, inputs: int, seed: int) -> ExpertLayers:
        specs = format.storage(outputs, inputs, torch.float32)
        buffers = {n: torch.zeros(EXPERTS, *s.shape, dtype=s.dtype) for n, s in specs.items()}
        weights = torch.randn(
            EXPERTS, outputs, inputs, generator=torch.Generator().manual_seed(seed)
        )
        for expert, weight in enumerate(weights):
            own = {name: buffer[expert] for name, buffer in buffers.items()}
            format.load([StoredWeight("w", weight / inputs**0.5)], own)
        return ExpertLayers(buffers, whole(EXPERTS, outputs, seed=seed), outputs)

    up, down = layers(2 * INNER, HIDDEN, 5), layers(HIDDEN, INNER, 6)
    return Mixture(up, down, INNER, gating)


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_mix_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gating = Gating("quick_gelu", limit=1.5, offset=1.0)
    x = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(7))
    weights, chosen = torch.rand(9, EXPERTS, generator=torch.Generator().manual_seed(8)).topk(3)
    call = (x, chosen, weights, 2 * x)
    want = PANELS.mixture(mixture(PANELS, gating), *call)
    got = FORMATS[name].mixture(mixture(FORMATS[name], gating), *call)
    tolerance = 0.05 if FORMATS[name].is_rounded else 1e-4
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    if name == "rows":  # as on a GPU
        monkeypatch.setattr(plain, "_everywhere", plain._grouped)
        torch.testing.assert_close(
            ROWS.mixture(mixture(ROWS, gating), *call), want, rtol=1e-4, atol=1e-4
        )
    kept = PANELS if FORMATS[name].is_rounded else FORMATS[name]
    assert floats_beside(FORMATS[name]) == kept
