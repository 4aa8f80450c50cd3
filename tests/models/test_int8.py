"""A model with rounded weights against transformers over the same weights, dequantised."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from checkpoint_converters import load_checkpoint
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.quantised import QuantisedFormat
from trtspec.models.causal_lm import CausalLM
from trtspec.ops.linear_quantised import round_weights, spread

from .paged import Feed, PagedModel
from .tiny_hf import VOCAB, tiny_model

PROMPT = torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.no_grad()
@pytest.mark.parametrize(
    ("case", "bits", "group"),
    [("llama_linear_biases", 8, 0), ("llama3_tied", 4, 32), ("qwen3", 8, 128)],
)
def test_logits_of_the_dequantised_model(tmp_path: Path, case: str, bits: int, group: int) -> None:
    """The head of a tied model is rounded, its embedding is not."""
    hf = tiny_model(case)
    hf.save_pretrained(tmp_path)
    rounded = copy.deepcopy(hf)
    if hf.config.tie_word_embeddings:
        rounded.lm_head.weight = nn.Parameter(hf.lm_head.weight.clone())
    for module in rounded.modules():
        if isinstance(module, nn.Linear):
            codes, scales = round_weights(module.weight, bits, group)
            module.weight.copy_(codes * spread(scales, codes.shape[1], group))
    checkpoint = load_checkpoint(tmp_path)
    ours = CausalLM(checkpoint.config, torch.float32, formats=integers(bits, group))
    for buffer in ours.layers.buffers():
        buffer.fill_(float("nan") if buffer.is_floating_point() else 99)  # what stays shows
    ours.load_weights(checkpoint)
    logits = PagedModel(ours).run({0: Feed(PROMPT, 0)})
    expected, exact = (model(torch.tensor([PROMPT])).logits[0] for model in (rounded, hf))
    scale = float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5 * scale)
    assert (exact - expected).abs().max() > 1e-3 * scale


def integers(bits: int, group: int) -> NetworkFormats:
    scheme = WeightStorage(bits, group)
    return NetworkFormats.uniform(QuantisedFormat(scheme, input_bits=0))


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    hf = tiny_model("llama")
    with torch.no_grad():
        hf.model.layers[1].mlp.down_proj.weight[3, 5] = torch.inf
    hf.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    model = CausalLM(checkpoint.config, torch.float32, formats=integers(8, 0))
    message = r"tensor layers\.1\.mlp\.down\.weight has 1 values that are NaN or infinite"
    with pytest.raises(CheckpointError, match=message):
        model.load_weights(checkpoint)
    CausalLM(checkpoint.config, torch.float32).load_weights(checkpoint)  # floats hold it
