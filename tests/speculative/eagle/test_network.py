"""EAGLE networks against a dense reference, over every way of feeding the cache; what they read
of the target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from checkpoint_converters import load_checkpoint
from trtspec.builder.checkpoints import read_draft
from trtspec.config.model import ModelConfig
from trtspec.engine.graphs import own_state, with_borrowed
from trtspec.errors import CheckpointError
from trtspec.models.causal_lm import CausalLM
from trtspec.models.loading import load_linear
from trtspec.speculative.eagle.network import EagleDraft
from trtspec.speculative.eagle.shape import EagleConfig

from ...checkpoints import draft_folder
from ...models.paged import Feed, PagedModel
from ...tiny_config import attention_of, dense_of
from .eagle_reference import (
    CASES,
    TARGET,
    TIED,
    DenseEagle,
    V,
    random_checkpoint,
    random_target,
)

LENGTH = 22
NOISE = torch.Generator().manual_seed(2)
IDS: list[int] = torch.randint(V, (LENGTH,), generator=NOISE).tolist()


def packed_target(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A target's weights as an engine folder holds them; only embedding and head are filled."""
    model = CausalLM(config, torch.float32)
    if model.embed is not None:
        model.embed.weight.copy_(tensors["embed.weight"])
    load_linear(model.lm_head, tensors, ["head" if "head.weight" in tensors else "embed"])
    return model.state_dict()


def loaded(config: EagleConfig, target: ModelConfig) -> tuple[EagleDraft, DenseEagle]:
    checkpoint, tensors = random_checkpoint(config), random_target(target)
    draft = EagleDraft(config, target, torch.float32)
    for name, buffer in draft.named_buffers():
        if name != "rotary.inv_freq":
            buffer.fill_(-1 if name == "token_map" else float("nan"))
    draft.load_weights(checkpoint, tensors)
    for name, tensor in own_state(draft).items():
        assert not tensor.isnan().any(), f"{name} was not filled"
    weights = packed_target(target, tensors)
    draft.load_state_dict(with_borrowed(draft, own_state(draft), weights), assign=True)
    for name, tensor in draft.state_dict().items():
        if name.startswith("target."):
            assert tensor.data_ptr() == weights[name.removeprefix("target.")].data_ptr()
    return draft, DenseEagle(config, checkpoint.tensors, tensors)


class PagedDraft:
    """A draft with paged caches; see `PagedModel`."""

    def __init__(self, draft: EagleDraft) -> None:
        self.draft = draft
        decoder = SimpleNamespace(config=draft.config.decoder, dtype=draft.dtype)
        self.paged = PagedModel(decoder)

    def run(self, feeds: dict[int, Feed], features: Tensor) -> tuple[Tensor, Tensor]:
        """Features to feed back and logits, of every row."""
        ids, rows, _ = self.paged.arguments(feeds)
        out, ready = self.draft.draft(ids, features, rows, self.paged.caches)
        return out, self.draft.head(ready)

    def first(self, feeds: dict[int, Feed], states: Tensor) -> Tensor:
        """Features of rows of the target's states."""
        return self.run(feeds, self.draft.fuse(states))[0]


@dataclass
class Pair:
    draft: EagleDraft
    dense: DenseEagle
    states: Tensor

    def chunks(self, cuts: list[int]) -> tuple[PagedDraft, list[Tensor]]:
        paged = PagedDraft(self.draft)
        outs = [paged.first({1: Feed(IDS[a:b], a)}, self.states[a:b]) for a, b in pairwise(cuts)]
        return paged, outs


@pytest.fixture(
    scope="module",
    params=[(case, target) for case in CASES for target in (TARGET, TIED)],
    ids=lambda p: f"{p[0]}-{'tied' if p[1].head.tied else 'untied'}",
)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    case, target = request.param
    config = CASES[case]
    draft, dense = loaded(config, target)
    noise = torch.Generator().manual_seed(3)
    yield Pair(draft, dense, 2 * torch.randn(LENGTH, config.hidden_in, generator=noise))


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-5 * float(expected.abs().max()))


def test_rows_of_the_targets_states(pair: Pair) -> None:
    """A first pass over a whole text, and in chunks: the same bits, and the reference's values."""
    expected, logits = pair.dense(IDS, pair.dense.fuse(pair.states))
    paged = PagedDraft(pair.draft)
    found, found_logits = paged.run({0: Feed(IDS, 0)}, pair.draft.fuse(pair.states))
    assert_close(found, expected)
    assert_close(found_logits, logits)
    assert found_logits.shape == (LENGTH, pair.draft.config.draft_vocab_size)
    _, outs = pair.chunks([0, 1, 9, 16, LENGTH])
    assert torch.equal(torch.cat(outs), found)


def test_kept_rows_have_the_bits_that_they_have_among_all(pair: Pair) -> None:
    kept, caches = torch.tensor([LENGTH - 1, 2]), []
    results = []
    for chosen in (None, kept):
        paged = PagedModel(SimpleNamespace(config=pair.draft.config.decoder, dtype=torch.float32))
        ids, rows, _ = paged.arguments({0: Feed(IDS, 0)})
        features = pair.draft.fuse(pair.states)
        results.append(pair.draft.draft(ids, features, rows, paged.caches, chosen))
        caches.append(paged.caches)
    for every, some in zip(*results, strict=True):
        assert torch.equal(every[kept], some)
    torch.testing.assert_close(caches[0], caches[1], rtol=0, atol=0)


def test_a_tree_of_its_own_features(pair: Pair) -> None:
    """Later passes skip ``fc`` (EAGLE-3), are fed what the pass before gave, and see their
    branch only; two requests at once."""
    paged, outs = pair.chunks([0, 13, 20])
    other = paged.first({0: Feed(IDS[:7], 0)}, pair.states[:7])
    root, other_root = outs[-1][-1], other[-1]
    # Depth 1: two children of the root; depth 2: a child of each, and one more of the second.
    first, _ = paged.run(
        {1: Feed([5, 66], 20, [-1, -1]), 0: Feed([8], 7, [-1])},
        torch.stack([root, root, other_root]),
    )
    tree = Feed([5, 66, 9, 0, 31], 20, [-1, -1, 0, 1, 1])
    features = torch.cat([torch.stack([root, root]), first[[0, 1, 1]]])
    found, logits = paged.run({1: tree}, features)
    assert torch.equal(found[:2], first[:2])
    for path in ([0, 2], [1, 3], [1, 4]):
        ids = [*IDS[:20], *(int(tree.tokens[row]) for row in path)]
        base = pair.dense.fuse(pair.states[:20])
        sequence = base
        for length in range(20, 22):
            out, _ = pair.dense(ids[:length], sequence)
            sequence = torch.cat([sequence, out[-1:]])
        expected, expected_logits = pair.dense(ids, sequence)
        assert_close(found[path], expected[20:])
        assert_close(logits[path], expected_logits[20:])


@pytest.mark.parametrize(("case", "is_normed"), [("eagle3", True), ("eagle3_no_norms", False)])
def test_a_factor_on_borrowed_rows_is_normed_away(case: str, is_normed: bool) -> None:
    """So heads run alike whether their trainer gave them Gemma's rows as stored (EAGLE, SpecForge,
    speculators, ModelOpt offline) or scaled (ModelOpt online)."""
    features = []
    for factor in (1, 50):
        draft, _ = loaded(CASES[case], TARGET)
        draft.target.embed.weight.mul_(factor)
        states = torch.randn(LENGTH, draft.config.hidden_in, generator=NOISE.manual_seed(3))
        features.append(PagedDraft(draft).first({0: Feed(IDS, 0)}, states))
    error = (features[1] - features[0]).norm() / features[0].norm()
    assert error < 1e-3 if is_normed else error > 1


def test_half_precision_keeps_its_dtype() -> None:
    config = CASES["eagle3.1"]
    draft = EagleDraft(config, TARGET, torch.bfloat16)
    draft.load_weights(random_checkpoint(config), random_target(TARGET))
    weights = {k: v.bfloat16() for k, v in packed_target(TARGET, random_target(TARGET)).items()}
    draft.load_state_dict(with_borrowed(draft, own_state(draft), weights), assign=True)
    paged = PagedDraft(draft)
    states = torch.randn(LENGTH, config.hidden_in, generator=torch.Generator().manual_seed(3))
    out, logits = paged.run({0: Feed(IDS, 0)}, draft.fuse(states.bfloat16()))
    assert (out.dtype, logits.dtype) == (torch.bfloat16, torch.float32)
    _, exact = DenseEagle(config, random_checkpoint(config).tensors, random_target(TARGET))(
        IDS, DenseEagle(config, random_checkpoint(config).tensors, {}).fuse(states)
    )
    assert float(((logits - exact).pow(2).mean() / exact.pow(2).mean()).sqrt()) < 0.06


def test_what_is_borrowed() -> None:
    """No copy of the target's embedding or head, and none of them in what a build saves."""

    def names(case: str, target: ModelConfig = TARGET) -> set[str]:
        draft = EagleDraft(CASES[case], target, torch.float32)
        held = {k for k in draft.state_dict() if {"embed", "lm_head"} & set(k.split("."))}
        own = {k for k in held if not k.startswith("target.")}
        assert held & own_state(draft).keys() == own
        return held

    embed, head = "target.embed.weight", "target.lm_head.packed"
    assert names("eagle1") == {embed, head}
    assert names("eagle1", TIED) == {head}
    assert names("eagle3") == {embed, "lm_head.packed"}
    assert names("eagle3", TIED) == {head, "lm_head.packed"}
    assert names("eagle3_cut_head") == {embed, "lm_head.packed"}
    assert names("eagle3_wider") == {"embed.weight", "lm_head.packed"}
    assert names("eagle3_own_embedding_targets_head") == {"embed.weight", head}


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "layers.0.hidden_norm.weight"])
def test_checkpoints_that_do_not_fit(name: str) -> None:
    config = CASES["eagle3"]
    checkpoint = random_checkpoint(config)
    del checkpoint.tensors[name]
    with pytest.raises(CheckpointError, match=f"no tensor {name}"):
        EagleDraft(config, TARGET, torch.float32).load_weights(checkpoint, random_target(TARGET))
    with pytest.raises(CheckpointError, match="is not the network's"):
        EagleDraft(replace(config, norm_output=True), TARGET, torch.float32).load_weights(
            random_checkpoint(config), random_target(TARGET)
        )


# What the target hands out.


def eight_layers(**options: Any) -> LlamaForCausalLM:
    """A transformers model of the shape of `draft_folder.TARGET`, every layer large in effect."""
    torch.manual_seed(9)
    t = draft_folder.TARGET
    config = LlamaConfig(
        vocab_size=t.vocab_size,
        hidden_size=t.hidden_size,
        intermediate_size=dense_of(t).intermediate_size,
        num_hidden_layers=t.num_layers,
        num_attention_heads=attention_of(t).num_heads,
        num_key_value_heads=attention_of(t).num_kv_heads,
        max_position_embeddings=64,
        initializer_range=0.3,
        attn_implementation="eager",
        **options,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def captured(folder: Path, layers: tuple[int, ...], ids: list[int]) -> Tensor:
    checkpoint = load_checkpoint(folder)
    model = CausalLM(checkpoint.config, torch.float32, layers)
    model.load_weights(checkpoint)
    paged = PagedModel(model)
    arguments = paged.arguments({0: Feed(ids, 0)}, padding=2)
    # The states are those of all rows, whichever logits are wanted.
    wanted = torch.tensor([3])
    logits, states = model(*arguments[:2], wanted, paged.caches)
    assert len(logits) == 1 and states.shape == (len(ids) + 2, len(layers) * draft_folder.H)
    return states[: len(ids)]


@pytest.mark.parametrize("tied", [False, True])
def test_every_layer_has_its_number(tied: bool, tmp_path: Path) -> None:
    """-1 .. L in any order: transformers' hidden_states[i + 1], the last one after the norm."""
    hf = eight_layers(tie_word_embeddings=tied)
    hf.save_pretrained(tmp_path)
    ids, layers = list(range(1, 12)), (3, 8, -1, 0, 6, 1, 2, 4, 5)
    outputs: list[Tensor] = []
    hook = hf.model.layers[-1].register_forward_hook(
        lambda module, inputs, output: outputs.append(output)
    )
    with torch.no_grad():
        hidden = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    parts = captured(tmp_path, (*layers, 7), ids).split(draft_folder.H, dim=1)
    for layer, part in zip(layers, parts[:-1], strict=True):
        assert_close(part, hidden[layer + 1 if layer < 8 else 8][0])
    last = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
    assert_close(parts[-1], last.reshape(len(ids), -1))  # before the norm
    assert not torch.allclose(parts[-1], hidden[8][0], atol=0.1)


IDS_KEY = "eagle_aux_hidden_state_layer_ids"
SAID = {
    # EAGLE's repository says nothing: the inputs of layers 2, L/2 and L - 3.
    "yuhuili": {},
    # ModelOpt: outputs.
    "ModelOpt": {},
    # vLLM, SGLang, speculators: inputs.
    "SpecForge": {IDS_KEY: [2, 4, 5]},
    "speculators": {IDS_KEY: [2, 4, 5]},
}


@pytest.mark.parametrize("kind", draft_folder.EAGLE3_FORMATS)
def test_conventions_of_layer_numbers(kind: str, tmp_path: Path) -> None:
    """All four formats name the inputs of layers 2, 4 and 5 of eight, each in its own way."""
    hf = eight_layers()
    hf.save_pretrained(tmp_path / "target")
    path = draft_folder.EAGLE3_FORMATS[kind](tmp_path / kind).write(**SAID[kind])
    draft = read_draft(path, draft_folder.TARGET)
    assert isinstance(draft.config, EagleConfig)
    ids = [4, 1, 19, 7, 7, 2]
    states = captured(tmp_path / "target", draft.config.capture_layers, ids)
    with torch.no_grad():
        hidden = hf(torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert_close(states, torch.cat([hidden[i][0] for i in (2, 4, 5)], dim=-1))


def test_eagle_1_reads_the_final_norm(tmp_path: Path) -> None:
    hf = eight_layers()
    hf.save_pretrained(tmp_path / "target")
    draft = read_draft(draft_folder.yuhuili1(tmp_path / "draft").write(), draft_folder.TARGET)
    assert isinstance(draft.config, EagleConfig)
    ids = [4, 1, 19, 7, 7, 2]
    states = captured(tmp_path / "target", draft.config.capture_layers, ids)
    with torch.no_grad():
        logits = hf(torch.tensor([ids])).logits[0]
        assert_close(hf.lm_head(states), logits)


def test_nothing_is_captured_unasked() -> None:
    model = CausalLM(TARGET, torch.float32)
    for buffer in model.buffers():
        buffer.normal_()
    paged = PagedModel(model)
    arguments = paged.arguments({0: Feed([1, 2], 0)})
    assert len(model(*arguments, paged.caches)) == 1
