"""PARD-2's rollout against the published one in transformers, and what its checkpoints may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from checkpoint_converters import load_checkpoint
from trtspec.builder.checkpoints import describe_draft, read_draft
from trtspec.config.tree import TreeShape
from trtspec.errors import CheckpointError
from trtspec.models.causal_lm import CausalLM
from trtspec.speculative.parallel.pard2 import Pard2Draft
from trtspec.speculative.parallel.rollout import RootStateRollout
from trtspec.speculative.parallel.shape import Pard2Config

from ...models.paged import BLOCK, Feed, PagedModel
from ..tree_reference import columns

MASK, STEPS, LAYERS, V = 7, 4, 3, 70
GIVEN = [-1, -2, 0]
"""The last state, that of the layer before it and the embeddings, as AMD lists them: from the end.
"""


def tiny(seed: int, hidden: int, layers: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=hidden,
        intermediate_size=40,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def save(folder: Path, draft: LlamaForCausalLM, warp: dict[str, Any], **said: Any) -> Path:
    draft.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"pard_token": MASK, "pard2": True, "pard2_target_layers": GIVEN, "pard2_scale": 0.3}
    (folder / "config.json").write_text(json.dumps(config | said))
    torch.save(warp, folder / "warp_model.bin")
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    hf, folder = tiny(1, 32, LAYERS), tmp_path_factory.mktemp("target")
    hf.save_pretrained(folder)
    return hf, folder


@pytest.mark.parametrize("bias", [False, True])
def test_the_published_rollout(
    target: tuple[LlamaForCausalLM, Path], tmp_path: Path, bias: bool
) -> None:
    """All rows at once, and in chunks: a row reads the state before its token, the first one none,
    and masks the root's."""
    hf, folder = target
    draft = tiny(2, 24, 2)
    warp = {"target_proj.weight": torch.randn(24, 3 * 32)}
    if bias:
        warp["target_proj.bias"] = torch.randn(24)
    saved = save(tmp_path / "draft", draft, warp, pard2_proj_bias=bias)
    found = read_draft(saved, load_checkpoint(folder).config)
    assert isinstance(found.config, Pard2Config)
    assert found.method == "pard2" and found.config.capture_layers == (-1, 1, LAYERS)
    assert describe_draft(saved) == f"draft: PARD-2, causal language model with mask token {MASK}"

    text = torch.randint(V, (1, 14), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        states = hf(text[:, :-1], output_hidden_states=True).hidden_states
        features = torch.cat([states[i] for i in GIVEN], dim=-1)
        features = torch.cat((torch.zeros_like(features[:, :1]), features), dim=1)
        features = torch.cat((features, *[features[:, -1:]] * (STEPS - 1)), dim=1)
        ids = torch.cat((text, torch.full((1, STEPS - 1), MASK)), dim=1)
        added = features @ warp["target_proj.weight"].T + warp.get("target_proj.bias", 0)
        embeds = draft.get_input_embeddings()(ids) + 0.3 * added
        expected = draft(inputs_embeds=embeds).logits[0, -STEPS:]

    network = Pard2Draft(found.config, load_checkpoint(folder).config, torch.float32)
    network.load_weights(found)
    model = CausalLM(load_checkpoint(folder).config, torch.float32, found.config.capture_layers)
    model.load_weights(load_checkpoint(folder))
    with torch.no_grad():
        paged = PagedModel(model)
        args = paged.arguments({0: Feed(text[0, :-1].tolist(), 0)})
        _, captured = model(*args, paged.caches)
    captured = torch.cat((torch.zeros_like(captured[:1]), captured))
    for cut in (0, 9):
        tokens, parents, scores = _rolled_out(network, text[0].tolist(), captured, cut)
        assert tokens.tolist() == expected.argmax(-1).tolist()
        assert parents.tolist() == list(range(-1, STEPS - 1))
        gains = expected.log_softmax(-1).max(-1).values.cumsum(0)
        torch.testing.assert_close(scores, gains, rtol=0, atol=1e-4)


@torch.no_grad()
def _rolled_out(
    network: Pard2Draft, text: list[int], states: Tensor, cut: int
) -> tuple[Tensor, Tensor, Tensor]:
    decoder = type("Decoder", (), {"config": network.config.decoder, "dtype": torch.float32})()
    paged = PagedModel(decoder)
    caches = paged.caches
    if cut:
        ids, rows, _ = paged.arguments({0: Feed(text[:cut], 0)})
        network.draft(ids, network.fuse(states[:cut]), rows, caches)
    ids, rows, _ = paged.arguments({0: Feed(text[cut:], cut)})
    rollout = RootStateRollout(network, TreeShape(1, STEPS, STEPS + 1), BLOCK, MASK)
    sampling = columns((0.0, 0, 1.0, 0.0, 0, 0, 0))
    last = rows.query_start[1:].long() - 1
    found = rollout(ids, rows, last, sampling, states[cut:], caches)
    return found[0][0], found[1][0], found[2][0]


@pytest.mark.parametrize(
    ("warp", "said", "message"),
    [
        (None, {}, r"a PARD-2 draft without warp_model\.bin"),
        (None, {"pard2": None, "pard2_target_layers": None, "spd_type": "pard2"}, "without warp"),
        ({"target_proj.weight": (24, 64)}, {}, r"holds target_proj\.weight \[24, 64\]; for the"),
        ({"other": (2, 2)}, {}, r"holds other \[2, 2\]"),
        ({}, {}, "holds nothing"),
        ({"target_proj.weight": (24, 96)}, {"pard2_target_layers": [0, 4]}, "outside -4 to 3"),
        ({"target_proj.weight": (24, 96)}, {"pard2_target_layers": [3, -1]}, "names a state twice"),
        ({"target_proj.weight": (24, 96)}, {"pard2_target_layers": 3}, "not a list of places"),
        ({"target_proj.weight": (24, 96)}, {"pard2_scale": "x"}, "pard2_scale is 'x', not a"),
        ({"target_proj.weight": (24, 96)}, {"pard2_scale": 0}, "must be above 0 and finite"),
    ],
)
def test_refusals(
    target: tuple[LlamaForCausalLM, Path],
    tmp_path: Path,
    warp: dict[str, tuple[int, ...]] | None,
    said: dict[str, Any],
    message: str,
) -> None:
    """Whatever is wrong: such a checkpoint never runs as PARD."""
    shapes = warp if warp is not None else {}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    folder = save(tmp_path / "draft", tiny(2, 24, 2), tensors, **said)
    if warp is None:
        (folder / "warp_model.bin").unlink()
    with pytest.raises(CheckpointError, match=message):
        read_draft(folder, load_checkpoint(target[1]).config)


def test_code_in_the_pickle(target: tuple[LlamaForCausalLM, Path], tmp_path: Path) -> None:
    """It is read as weights, and nothing else."""
    folder = save(tmp_path / "draft", tiny(2, 24, 2), {"target_proj.weight": print})
    with pytest.raises(CheckpointError, match="only pickles of plain tensors are read"):
        read_draft(folder, load_checkpoint(target[1]).config)
