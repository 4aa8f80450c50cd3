"""CausalLM goes through torch.export with every size dynamic, in place on its caches."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch.export import Dim

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rows import PackedRows

from ..tiny_config import tiny_config
from .paged import Feed, PagedModel

NORM = NormSpec(1e-6)
LATENTS = LatentAttentionSpec(4, 12, 8, 6, 10, NORM, q_rank=14)
GROUPS = ExpertsSpec(
    8, 2, 12, "sigmoid", choice_bias=True, num_groups=4, top_groups=2, shared_size=16
)


def random_model(tied: bool, latents: bool = False) -> CausalLM:
    """``latents``: with latent attention, and experts in groups in the last layer."""
    config = tiny_config(
        architecture="LlamaForCausalLM",
        vocab_size=100,
        hidden_size=32,
        intermediate_size=40,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        eps=1e-6,
        max_position_embeddings=64,
        tied=tied,
        qk_norm=True,
        windows=(8, 0),
    )
    if latents:
        parts = (DenseSpec(40), GROUPS)
        layers = Layers.of(LayerSpec(LATENTS, part, NORM) for part in parts)
        config = replace(config, layers=layers)
    torch.manual_seed(0)
    model = CausalLM(config, torch.float32)
    for name, buffer in model.named_buffers():
        if name != "rotary.inv_freq":
            buffer.normal_(std=0.2)
    return model


@pytest.mark.parametrize(("tied", "latents"), [(True, False), (False, False), (False, True)])
def test_export_with_dynamic_shapes(tied: bool, latents: bool) -> None:
    model = random_model(tied, latents)
    paged = PagedModel(model)
    feeds = {0: Feed([1, 2, 3], 0), 1: Feed([4, 5, 6], 0, parents=[-1, 0, 0])}
    rows, requests, wanted, blocks = Dim("T"), Dim("B"), Dim("R"), Dim("num_blocks")
    caches = [({0: blocks},) * 2] * 2
    arguments = (*paged.arguments(feeds), paged.caches)
    program = torch.export.export(
        model,
        arguments,
        dynamic_shapes=(
            {0: rows},
            PackedRows(
                {0: rows},
                {0: rows},
                {0: requests, 1: Dim("M")},
                {0: requests + 1},
                {0: requests},
                {0: requests},
                {0: rows},
            ),
            {0: wanted},
            caches,
        ),
        strict=False,
    )
    assert set(program.state_dict) == set(model.state_dict())
    assert sum(buffer.requires_grad for buffer in model.buffers()) == 0

    exported, eager = PagedModel(model, 3, program.module()), PagedModel(model, 3)
    for step in (
        {2: Feed(range(11), 0)},
        {2: Feed([7, 8, 9, 4], 11, parents=[-1, 0, 1, 0]), 0: Feed([3], 0)},
        {0: Feed([6], 1)},
    ):
        assert torch.equal(exported.run(step), eager.run(step, padding=2))
    for found, expected in zip(chain(*exported.caches), chain(*eager.caches), strict=True):
        assert torch.equal(found, expected) and expected.any()
