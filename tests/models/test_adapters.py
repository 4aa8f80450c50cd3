"""Adapters beside products of every weight format; where they are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.builder.adapters import all_adapters_bytes, require_adapters
from trtspec.config.adapters import AdapterSizes
from trtspec.config.build_config import BuildConfig
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.config.storage import WeightStorage
from trtspec.errors import ConfigError
from trtspec.formats.plain import PANELS, ROWS
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.stored import StoredWeight
from trtspec.models.causal_lm import CausalLM
from trtspec.models.linear import Linear
from trtspec.models.lora import Lora

N, K, RANK = 70, 96, 5
FORMATS = {
    "rows": ROWS,
    "panels": PANELS,
    "int8": QuantisedFormat(WeightStorage(8)),
    "int4": QuantisedFormat(WeightStorage(4, 32)),
}
NORM = NormSpec(1e-5)
ATTENTION = AttentionSpec(4, 2, 8)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS.values(), ids=list(FORMATS))
def test_the_sum_of_product_and_adapter(format: Any, dtype: torch.dtype) -> None:
    """Beside what the format makes of the weights."""
    linear = Linear(K, N, dtype, bias=True, format=format)
    linear.load([StoredWeight("w", random(N, K, seed=1) / K**0.5)], [random(N, seed=2)])
    x, residual = random(4, K, seed=3).to(dtype), random(4, N, seed=4).to(dtype)
    without = linear(x, residual=residual)
    linear.lora = Lora(AdapterSizes(2, 8), K, (N - 30, 30), dtype)
    a, b = random(RANK, K, seed=5) / K**0.5, random(N, RANK, seed=6)
    for part, rows in enumerate((slice(0, N - 30), slice(N - 30, N))):
        linear.lora.fill(0, part, a.to(dtype), b[rows].to(dtype))
        linear.lora.fill(1, part, None, None)
    index = torch.tensor([0, -1, 1, 0], dtype=torch.int32)
    got = linear(x, residual=residual, adapters=index)
    assert torch.equal(got[1:3], without[1:3])  # none, and one that says nothing of this layer
    added = (x.float() @ a.to(dtype).float().T @ b.to(dtype).float().T)[[0, 3]]
    near = 1e-4 if dtype == torch.float32 else 6e-2
    wanted = without[[0, 3]].float() + added
    torch.testing.assert_close(got[[0, 3]].float(), wanted, rtol=near, atol=near)


def model(**changes: Any) -> ModelConfig:
    layer = LayerSpec(ATTENTION, DenseSpec(40), NORM)
    given = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 50,
        "hidden_size": 24,
        "layers": Layers.of([layer] * 2),
        "norm": NORM,
        "max_position_embeddings": 64,
    }
    return ModelConfig(**{**given, **changes})


def test_the_plan_counts_the_room() -> None:
    config, sizes = model(), AdapterSizes(3, 8)
    network = CausalLM(config, torch.bfloat16, adapters=sizes)
    held = sum(b.nbytes for n, b in network.named_buffers() if ".lora." in n)
    build = BuildConfig(dtype="bfloat16", enable_lora=True, max_loras=3, max_lora_rank=8)
    assert all_adapters_bytes(config, build) == held > 0
    assert all_adapters_bytes(config, BuildConfig(dtype="bfloat16")) == 0


def latent() -> LatentAttentionSpec:
    return LatentAttentionSpec(
        num_heads=4, plain_dim=8, rope_dim=4, value_dim=8, kv_rank=12, q_rank=None, norm=NORM
    )


@pytest.mark.parametrize(
    ("config", "build", "said"),
    [
        (model(), {"backend": "onnx"}, "graphs of backend 'onnx' call none"),
        (model(), {"backend": "tensorrt"}, "graphs of backend 'tensorrt' call none"),
        (model(), {"tensor_parallel_size": 2}, "split over ranks"),
        (
            model(layers=Layers.of([LayerSpec(latent(), DenseSpec(40), NORM)])),
            {},
            "has latent attention, beside which",
        ),
    ],
)
def test_refused_where_nothing_runs_them(
    config: ModelConfig, build: dict[str, Any], said: str
) -> None:
    asked = BuildConfig(**{"dtype": "float32", "backend": "aoti", "enable_lora": True, **build})
    with pytest.raises(ConfigError, match=said):
        require_adapters(config, asked)


@pytest.mark.parametrize("value", [0, 12, 264])
def test_ranks_that_are_refused(value: int) -> None:
    with pytest.raises(ConfigError, match=f"max_lora_rank={value} must be a multiple of 8"):
        BuildConfig(enable_lora=True, max_lora_rank=value)
